/* SPDX-License-Identifier: Apache-2.0 */
/* text/ask.c: what is asked for, and what only sounds like it. */
#include "t.h"
#include "text/ask.h"

static void form(const char *text, const char *name, const char *opening)
{
    const char *got = NULL;
    m5_ask_form f = m5_ask_find_form(m5_slice_of(text), &got);
    const char *got_name = m5_ask_form_name(f);
    T_CHECK(strcmp(got_name ? got_name : "", name) == 0, "%s: %s", text, got_name ? got_name : "nothing");
    T_EQ_STR(got, opening);
}

static void test_forms(void)
{
    form("Return the result as JSON with the keys name and age.", "json", "```json\n");
    form("Gib mir die Daten als JSON.", "json", "```json\n");
    form("请用JSON输出结果", "json", "```json\n");
    form("Write an SQL query for the ten best customers.", "sql", "```sql\n");
    form("Write a function in Python that reverses a list.", "code", "```python\n");
    form("Implement the function `f` of the header in C.", "code", "```c\n");
    form("Écris une fonction en rust qui trie.", "code", "```rust\n");
    form("write a script that says hello", "code", "```\n");
    form("Translate this into French: good morning", "translation", "Translation:\n");
    form("「おはよう」を英語に翻訳してください", "translation", "Translation:\n");
    form("List the five largest lakes.", "list", "1. ");
    form("Nenne drei Flüsse.", "list", "1. ");
    /* Words that only occur. */
    form("What is the function of the heart?", "", "");
    form("Is JSON older than XML?", "", "");
    form("Why did the listing fail?", "", "");
    form("My name is Anna.", "", "");
    form("", "", "");
    form("The translator wrote a letter.", "", "");
    /* In a long message the ends count, not the paste between them. */
    static char text[9000];
    memset(text, 'x', sizeof text - 1);
    memcpy(text + 4000, " return json ", 13);
    form(text, "", "");
    memcpy(text + sizeof text - 1 - 20, "\nreturn it as json.\n", 20);
    form(text, "json", "```json\n");
}

static bool needle(const char *system, int n_system, const char *user, int n_before, const m5_ask_needle_limits *lim)
{
    m5_json *list = m5_json_new_array(), *s = m5_json_new_object(), *u = m5_json_new_object();
    m5_buf b = {0}, q = {0};
    while ((int)b.n < n_system) m5_buf_puts(&b, system);
    while ((int)q.n < n_before) m5_buf_puts(&q, "Some words of a report.\n");
    m5_buf_puts(&q, user);
    m5_json_set_str(s, "role", "system");
    m5_json_set_take(s, "content", m5_json_new_str(b.p ? b.p : "", b.n));
    m5_json_set_str(u, "role", "user");
    m5_json_set_take(u, "content", m5_json_new_str(q.p, q.n));
    m5_json_push_take(list, s);
    m5_json_push_take(list, u);
    bool is = m5_ask_is_needle(list, lim);
    m5_json_unref(list);
    m5_buf_free(&b);
    m5_buf_free(&q);
    return is;
}

static void test_needles(void)
{
    T_CHECK(needle("A long report. ", 4000, "Which number is in part 3?", 0, NULL));
    T_CHECK(needle("A long report. ", 4000, "Find the number of the contract.", 0, NULL));
    T_CHECK(!needle("A long report. ", 2900, "Which number is in part 3?", 0, NULL));
    T_CHECK(!needle("A long report. ", 4000, "Thank you, that is all.", 0, NULL));
    T_CHECK(!needle("A long report. ", 4000, "Summarise the report in the style of a pirate.", 0, NULL));
    T_CHECK(needle("Ein Bericht. ", 4000, "Welche Nummer hat der Vertrag", 0, NULL));
    T_CHECK(needle("Un rapport. ", 4000, "Où est le contrat", 0, NULL));
    T_CHECK(needle("文章。", 10000, "合同号是什么", 0, NULL) == false); /* the word stands at the end and no mark does */
    T_CHECK(needle("文章。", 10000, "合同号是什么？", 0, NULL));
    T_CHECK(!needle("文章。", 6000, "合同号是什么？", 0, NULL)); /* characters, not bytes */
    /* The text in the user's message itself. */
    T_CHECK(needle("", 0, "\nWhat is the number?", 4000, NULL));
    T_CHECK(!needle("", 0, "\nWhat is the number?", 2000, NULL));
    char longish[300];
    memset(longish, 'y', sizeof longish - 1);
    longish[298] = '?', longish[299] = 0;
    T_CHECK(!needle("A long report. ", 4000, longish, 0, NULL));
    T_CHECK(needle("A long report. ", 4000, longish, 0, &(m5_ask_needle_limits){.max_question = 400}));
    T_CHECK(needle("A report. ", 400, "who?", 0, &(m5_ask_needle_limits){.min_context = 300}));
    T_CHECK(!m5_ask_is_needle(NULL, NULL) && m5_ask_last_user(NULL).n == 0);
}

int main(void)
{
    test_forms();
    test_needles();
    return t_done();
}
