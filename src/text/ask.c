/* SPDX-License-Identifier: Apache-2.0 */
/* Word tables and their use; see ask.h. Words are matched in lower case, at word borders where the script has them.
 * Thresholds of the needle rule: the ones that the rule was first used with (3,000 and 200 characters). */
#include "text/ask.h"

#include <string.h>

/* Lists end with NULL; '|' separates words of one list to keep the tables short. */
typedef struct rule {
    m5_ask_form form;
    const char *all[2];  /* one word of each list must be there; NULL = no condition */
    const char *opening; /* NULL: the name of a programming language is looked for */
} rule;

#define MAKE                                                                                                                                           \
    "write|return|output|respond|reply|answer|give|produce|generate|create|format|extract|print|convert|provide|schreib|schreibe|gib|antworte|"        \
    "erzeuge|"                                                                                                                                         \
    "erstelle|écris|écrire|réponds|donne|renvoie|génère|escribe|responde|devuelve|genera|crea|dame|scrivi|rispondi|restituisci|escreva|responda|" \
    "retorne|"                                                                                                                                         \
    "gere|写|输出|返回|生成|给出|提取|書いて|出力|返して|作成|生成"
static const rule rules[] = {
    {M5_ASK_JSON, {"json", MAKE "|as json|in json|valid json|only json|als json|en json|in formato json|em json"}, "```json\n"},
    {M5_ASK_SQL, {"sql", MAKE "|query|abfrage|requête|consulta|查询|クエリ"}, "```sql\n"},
    {M5_ASK_CODE,
     {"implement|write|code|program|schreib|schreibe|implementiere|écris|implémente|escribe|implementa|scrivi|escreva|implemente|写|实现|编写|書いて|"
      "実装",
      "a function|a program|a script|a class|a method|the function|the code|python code|unit tests|eine funktion|ein programm|ein skript|eine "
      "klasse|une fonction|un "
      "programme|un script|una función|un programa|una funzione|un programma|uma função|um programa|函数|程序|脚本|代码|関数|プログラム|コード"},
     NULL},
    {M5_ASK_TRANSLATION,
     {"translate|übersetze|übersetz|traduis|traduire|traduce|traducir|traduci|traduza|traduzir|翻译|翻訳|訳して", NULL},
     "Translation:\n"},
    {M5_ASK_LIST,
     {"list|name|enumerate|rank|liste|nenne|zähle|énumère|cite|enumera|lista|nombra|elenca|liste|列出|列举|挙げて|列挙",
      "ten|five|three|steps|numbered|ranked|top|"
      "in order|of all|all the|the most|the "
      "main|nummeriert|schritte|zehn|fünf|drei|étapes|dix|cinq|trois|pasos|diez|cinco|tres|passi|dieci|cinque|tre|passos|"
      "10|9|8|7|6|5|4|3|个|つ|全部|すべて"},
     "1. "},
};

static const struct {
    const char *words, *opening;
} languages[] = {
    {"python|pandas|numpy|django", "```python\n"},
    {"typescript", "```typescript\n"},
    {"javascript|node.js|react", "```javascript\n"},
    {"c++|cpp", "```cpp\n"},
    {"c#|csharp", "```csharp\n"},
    {"rust", "```rust\n"},
    {"golang|in go", "```go\n"},
    {"java", "```java\n"},
    {"kotlin", "```kotlin\n"},
    {"swift", "```swift\n"},
    {"ruby", "```ruby\n"},
    {"php", "```php\n"},
    {"bash|shell", "```bash\n"},
    {"html", "```html\n"},
    {"css", "```css\n"},
    {"in c|c11|c99", "```c\n"},
};

static const char question_marks[] = "?|？|؟|՞";
/* What a question or a request to look something up begins with. */
static const char question_words[] = "what|which|where|who|whose|when|how|find|extract|list|name|tell me|look up|quote|"
                                     "was|welche|welcher|welches|wo|wer|wann|wie|finde|nenne|suche|sag mir|"
                                     "que|quel|quelle|quels|quelles|où|qui|quand|combien|trouve|cite|dis-moi|"
                                     "qué|cuál|cuáles|dónde|quién|cuándo|cuánto|encuentra|busca|dime|"
                                     "che|cosa|quale|quali|dove|chi|quando|quanto|trova|dimmi|"
                                     "qual|quais|onde|quem|encontre|diga|"
                                     "wat|welke|waar|wie|wanneer|hoeveel|vind|noem|"
                                     "co|który|która|gdzie|kto|kiedy|ile|znajdź|"
                                     "что|какой|какая|какое|где|кто|когда|сколько|найди|назови|"
                                     "什么|哪|谁|何时|多少|找出|请问|何|"
                                     "どこ|誰|いつ|どれ|いくつ|探して|教えて|무엇|어디|누가|언제|찾아";

/* Appends s in lower case: Latin, Latin-1 and Cyrillic letters. */
static void fold(m5_slice s, m5_buf *out)
{
    while (s.n > 0) {
        uint32_t c;
        int n = m5_utf8_decode(s.p, s.n, &c);
        if (n <= 0) return;
        if ((c >= 'A' && c <= 'Z') || (c >= 0xC0 && c <= 0xDE && c != 0xD7) || (c >= 0x410 && c <= 0x42F)) c += 32;
        m5_buf_codepoint(out, c);
        s.p += n;
        s.n -= (size_t)n;
    }
}

/* Whether the character that begins at p continues a word: letters of alphabets do, those of scripts that write without blanks do not. */
static bool continues_word(unsigned char lead)
{
    return (lead >= 'a' && lead <= 'z') || (lead >= '0' && lead <= '9') || lead == '_' || (lead >= 0xC3 && lead < 0xE0);
}

/* Whether the word stands at text[at], with borders on both sides where it is written in an alphabet. */
static bool stands(m5_slice text, size_t at, m5_slice word)
{
    if (word.n == 0 || at + word.n > text.n || memcmp(text.p + at, word.p, word.n) != 0) return false;
    if ((unsigned char)word.p[0] >= 0xE0) return true;
    size_t before = at;
    while (before > 0 && ((unsigned char)text.p[--before] & 0xC0) == 0x80) continue;
    if (at > 0 && continues_word((unsigned char)word.p[0]) && continues_word((unsigned char)text.p[before])) return false;
    size_t last = word.n - 1;
    while (last > 0 && ((unsigned char)word.p[last] & 0xC0) == 0x80) last--;
    return !continues_word((unsigned char)word.p[last]) || at + word.n == text.n || !continues_word((unsigned char)text.p[at + word.n]);
}

/* Next word of a '|' list; false at its end. */
static bool next_word(const char **list, m5_slice *word)
{
    if (!**list) return false;
    size_t n = strcspn(*list, "|");
    *word = (m5_slice){*list, n};
    *list += n + ((*list)[n] == '|');
    return true;
}

static bool has_one(m5_slice text, const char *list)
{
    m5_slice word;
    while (next_word(&list, &word))
        for (size_t at = 0; at + word.n <= text.n; at++)
            if (stands(text, at, word)) return true;
    return false;
}

static bool begins_with_one(m5_slice text, const char *list)
{
    m5_slice word;
    while (next_word(&list, &word))
        if (stands(text, 0, word)) return true;
    return false;
}

/* The first rule that the folded text fits. */
static const rule *find_rule(m5_slice text)
{
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (has_one(text, rules[i].all[0]) && (!rules[i].all[1] || has_one(text, rules[i].all[1]))) return &rules[i];
    return NULL;
}

m5_ask_form m5_ask_find_form(m5_slice text, const char **opening)
{
    /* What is wanted stands at the beginning or at the end; a long paste in between says nothing about it. */
    enum { NEAR = 1000 };
    m5_slice ends[2] = {{text.p, text.n < NEAR ? text.n : NEAR}, {text.p + (text.n < NEAR ? 0 : text.n - NEAR), text.n < NEAR ? 0 : NEAR}};
    const rule *found = NULL;
    *opening = "";
    for (size_t k = 0; k < 2 && !found; k++) {
        m5_buf low = {0};
        fold(ends[k], &low);
        found = find_rule(m5_buf_view(&low));
        if (found) *opening = found->opening ? found->opening : "```\n";
        for (size_t l = 0; found && !found->opening && l < sizeof languages / sizeof *languages; l++) {
            if (!has_one(m5_buf_view(&low), languages[l].words)) continue;
            *opening = languages[l].opening;
            break;
        }
        m5_buf_free(&low);
    }
    return found ? found->form : M5_ASK_NONE;
}

const char *m5_ask_form_name(m5_ask_form form)
{
    static const char *const names[] = {NULL, "json", "code", "sql", "list", "translation"};
    return names[form];
}

m5_slice m5_ask_last_user(const m5_json *messages)
{
    for (size_t i = m5_json_len(messages); i > 0; i--) {
        const m5_json *m = m5_json_at(messages, i - 1);
        if (!m5_slice_is(m5_json_str(m5_json_get(m, "role")), "user")) continue;
        const m5_json *content = m5_json_get(m, "content"), *part = m5_json_at(content, m5_json_len(content) - 1);
        return m5_json_str(part ? m5_json_get(part, "text") : content);
    }
    return (m5_slice){"", 0};
}

static size_t n_chars(m5_slice s)
{
    size_t n = 0;
    for (size_t i = 0; i < s.n; i++) n += ((unsigned char)s.p[i] & 0xC0) != 0x80;
    return n;
}

static m5_slice trimmed(m5_slice s)
{
    while (s.n && (unsigned char)*s.p <= ' ') s.p++, s.n--;
    while (s.n && (unsigned char)s.p[s.n - 1] <= ' ') s.n--;
    return s;
}

static bool is_question(m5_slice s, size_t max)
{
    if (s.n == 0 || n_chars(s) >= max) return false;
    m5_buf low = {0};
    fold(s, &low);
    bool is = has_one(m5_buf_view(&low), question_marks) || begins_with_one(m5_buf_view(&low), question_words);
    m5_buf_free(&low);
    return is;
}

bool m5_ask_is_needle(const m5_json *messages, const m5_ask_needle_limits *lim)
{
    size_t min = lim && lim->min_context > 0 ? (size_t)lim->min_context : 3000, max = lim && lim->max_question > 0 ? (size_t)lim->max_question : 200,
           total = 0;
    for (size_t i = 0; i < m5_json_len(messages); i++) total += n_chars(m5_json_str(m5_json_get(m5_json_at(messages, i), "content")));
    m5_slice last = trimmed(m5_ask_last_user(messages)), lines[3] = {last, last, last};
    for (size_t i = last.n; i > 0; i--) {
        if (last.p[i - 1] != '\n') continue;
        lines[1] = trimmed((m5_slice){last.p + i, last.n - i});
        break;
    }
    const char *end = last.n ? memchr(last.p, '\n', last.n) : NULL;
    if (end) lines[2] = trimmed((m5_slice){last.p, (size_t)(end - last.p)});
    for (size_t i = 0; i < 3; i++)
        if (is_question(lines[i], max) && total - n_chars(lines[i]) > min) return true;
    return false;
}
