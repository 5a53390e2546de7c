/* SPDX-License-Identifier: Apache-2.0 */
/* text/toolcall*.c: every wire format, every split, broken output. Fixtures are texts as a model would write them; a result is written as
 * T(content) and C(name|arguments), with ? for an undeclared function and ~ for a call whose end had to be supplied. */
#include "base/json.h"
#include "base/mem.h"
#include "t.h"
#include "text/toolcall.h"

static const char tools_text[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"parameters\": {\"type\": \"object\", \"properties\": {"
    "\"city\": {\"type\": \"string\"}, \"days\": {\"type\": \"integer\"}, \"unit\": {\"enum\": [\"c\", \"f\", \"1\"]}}, \"required\": [\"city\"]}}},"
    "{\"type\": \"function\", \"function\": {\"name\": \"edit\", \"parameters\": {\"type\": \"object\", \"$defs\": {\"Deep\": {\"type\": "
    "\"array\"}}, "
    "\"properties\": {\"path\": {\"type\": \"string\"}, \"text\": {\"type\": \"string\"}, \"line\": {\"type\": [\"integer\", \"null\"]}, "
    "\"ratio\": {\"type\": \"number\"}, \"all\": {\"type\": \"boolean\"}, \"opts\": {\"type\": \"object\"}, \"list\": {\"$ref\": \"#/$defs/Deep\"}, "
    "\"note\": {\"type\": [\"string\", \"null\"]}, \"any\": {}, \"mixed\": {\"anyOf\": [{\"type\": \"string\"}, {\"type\": \"integer\"}]}, "
    "\"must\": {\"type\": \"integer\"}}, \"required\": [\"must\"]}}},"
    "{\"name\": \"ping\"}]";

static m5_json *tools;

typedef struct result {
    m5_buf log, text, args;
    int open, n_args;
    bool whole;
} result;

static void flush_text(result *r)
{
    if (r->text.n) m5_buf_printf(&r->log, "T(%s)", r->text.p);
    m5_buf_clear(&r->text);
}

static void on_event(void *arg, const m5_toolcall_event *ev)
{
    result *r = arg;
    T_CHECK(m5_utf8_valid(ev->text.p ? ev->text.p : "", ev->text.n));
    switch (ev->kind) {
    case M5_TOOLCALL_TEXT:
        T_CHECK(r->open < 0 && ev->text.n > 0);
        m5_buf_append(&r->text, ev->text.p, ev->text.n);
        break;
    case M5_TOOLCALL_BEGIN:
        flush_text(r);
        T_CHECK(r->open < 0);
        r->open = ev->index;
        r->n_args = 0;
        m5_buf_printf(&r->log, "C(%s%.*s|", ev->known ? "" : "?", (int)ev->text.n, ev->text.p);
        m5_buf_clear(&r->args);
        break;
    case M5_TOOLCALL_ARGS:
        T_CHECK(r->open == ev->index && ev->text.n > 0);
        r->n_args++;
        m5_buf_append(&r->args, ev->text.p, ev->text.n);
        break;
    case M5_TOOLCALL_END: {
        m5_json *v = NULL;
        m5_error err = {0};
        m5_json_limits lim = {.big_ints = true};
        T_CHECK(r->open == ev->index && r->n_args > 0);
        T_CHECK(m5_json_parse(&v, r->args.p ? r->args.p : "", r->args.n, &lim, &err) == 0 && m5_json_typeof(v) == M5_JSON_OBJECT, "%s: %s", err.text,
                r->args.p ? r->args.p : "");
        m5_json_unref(v);
        r->open = -1;
        m5_buf_printf(&r->log, "%s)%s", r->args.p ? r->args.p : "", ev->complete ? "" : "~");
        break;
    }
    }
}

static m5_toolcall_format *format(const char *name)
{
    m5_toolcall_format *f = NULL;
    m5_error err = {0};
    T_CHECK(m5_toolcall_format_named(&f, name, &err) == 0, "%s", err.text);
    return f;
}

/* Parses text cut at `cut` (SIZE_MAX: not at all; n + 1: into bytes). */
static void parse(result *r, const m5_toolcall_format *f, bool parallel, const char *prefix, const char *text, size_t n, size_t cut)
{
    m5_toolcall *p = NULL;
    *r = (result){.open = -1};
    m5_toolcall_args args = {.format = f, .tools = tools, .parallel = parallel, .prefix = m5_slice_of(prefix), .fn = on_event, .arg = r};
    T_EQ_INT(m5_toolcall_new(&p, &args, NULL), 0);
    if (cut == n + 1) {
        for (size_t i = 0; i < n; i++) T_EQ_INT(m5_toolcall_push(p, text + i, 1), 0);
    } else if (cut <= n) {
        T_EQ_INT(m5_toolcall_push(p, text, cut), 0);
        T_EQ_INT(m5_toolcall_push(p, text + cut, n - cut), 0);
    } else {
        T_EQ_INT(m5_toolcall_push(p, text, n), 0);
    }
    T_EQ_INT(m5_toolcall_finish(p), 0);
    flush_text(r);
    T_CHECK(r->open < 0);
    m5_toolcall_free(p);
}

static void drop(result *r)
{
    m5_buf_free(&r->log);
    m5_buf_free(&r->text);
    m5_buf_free(&r->args);
}

static void check_with(const m5_toolcall_format *f, bool parallel, const char *prefix, const char *text, const char *want)
{
    result r;
    size_t n = strlen(text);
    parse(&r, f, parallel, prefix, text, n, SIZE_MAX);
    const char *got = r.log.p ? r.log.p : "";
    T_CHECK(strcmp(got, want) == 0, "\n  text %s\n  got  %s\n  want %s", text, got, want);
    for (size_t cut = 1; cut <= n + 1; cut++) {
        result s;
        if (cut == n) continue;
        parse(&s, f, parallel, prefix, text, n, cut);
        T_CHECK(strcmp(s.log.p ? s.log.p : "", got) == 0, "\n  cut at %d of %s\n  got  %s\n  want %s", (int)cut, text, s.log.p ? s.log.p : "", got);
        drop(&s);
    }
    drop(&r);
}

static void check(const char *name, const char *text, const char *want)
{
    m5_toolcall_format *f = format(name);
    check_with(f, true, NULL, text, want);
    m5_toolcall_format_free(f);
}

static void test_hermes(void)
{
    check("hermes", "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Z\xC3\xBCrich\", \"days\": 2}}\n</tool_call>",
          "C(get_weather|{\"city\": \"Z\xC3\xBCrich\", \"days\": 2})");
    check("hermes",
          "Let me "
          "look.\n\n<tool_call>\n{\"name\":\"ping\",\"arguments\":{}}\n</"
          "tool_call>\n<tool_call>{\"arguments\":{\"a\":[1,{\"b\":null}]},\"name\":\"nope\"}</tool_call>\n\nDone. ",
          "T(Let me look.)C(ping|{})C(?nope|{\"a\": [1, {\"b\": null}]})T(Done. )");
    check("hermes", "<tool_call>\n{\"name\": \"ping\", \"arguments\": \"{\\\"a\\\": \\\"x\\\\ny\\\", \\\"b\\\": 1e3}\"}\n</tool_call>",
          "C(ping|{\"a\": \"x\\ny\", \"b\": 1e3})");
    check("hermes", "<tool_call>\n{\"name\": \"ping\", \"arguments\": \"some, text \\n\"}\n</tool_call>\n<think>",
          "C(ping|{\"value\": \"some, text \\n\"})T(<think>)");
    check("hermes", "<tool_call>\n{\"name\": \"ping\", \"arguments\": \" \"}\n</tool_call>", "C(ping|{})");
    check("hermes", "<tool_call>\n{\"name\": \"ping\"}\n</tool_call>", "C(ping|{})");
    check("hermes", "<tool_call>\n{\"name\": \"ping\", \"arguments\": null}\n</tool_call>", "C(ping|{})");
    check("hermes", "<tool_call>\n{\"name\": \"ping\", \"arguments\": [1]}\n</tool_call>", "C(ping|{\"value\": [1]})");
    check("hermes", "<tool_call>[{\"name\": \"ping\", \"arguments\": {}}, {\"name\": \"get_weather\", \"arguments\": {\"city\": \"B\"}}]</tool_call>",
          "C(ping|{})C(get_weather|{\"city\": \"B\"})");
    check("hermes", "<tool_call>{\"type\": \"function\", \"function\": {\"name\": \"ping\", \"arguments\": \"{}\"}, \"id\": \"x\"}</tool_call>",
          "C(ping|{})");
    check("hermes", "<tool_call>{\"get_weather\": {\"city\": \"B\"}}</tool_call>", "C(get_weather|{\"city\": \"B\"})");
    check("hermes", "<tool_call>{\"name\": \"functions.ping\", \"arguments\": {\"a\": \"</tool_call> \\\"<tool_call>\\\" }\"}}</tool_call>",
          "C(ping|{\"a\": \"</tool_call> \\\"<tool_call>\\\" }\"})");
    check("hermes", "<tool_call>{\"name\": \"ping\", \"arguments\": {\"e\": \"\\ud83d\\ude42 \\u00e9\\/ \\ud83d! \\u0001\"}}</tool_call>",
          "C(ping|{\"e\": \"\xF0\x9F\x99\x82 \xC3\xA9/ \xEF\xBF\xBD! \\u0001\"})");
    check("hermes", "<tool_call>\n<function=get_weather>\n<parameter=city>\nBern\n</parameter>\n</function>\n</tool_call>",
          "C(get_weather|{\"city\": \"Bern\"})");
}

static void test_content(void)
{
    check("hermes", "plain text, nothing else  ", "T(plain text, nothing else  )");
    check("hermes", " The <tool_call> mark is text, and <tool", "T( The <tool_call> mark is text, and <tool)");
    check("hermes", "Write `<tool_call>{\"name\": \"ping\"}</tool_call>`.", "T(Write `<tool_call>{\"name\": \"ping\"}</tool_call>`.)");
    check("hermes", "So:\n```\n<tool_call>{\"name\": \"ping\"}</tool_call>\n```\n<tool_call>{\"name\": \"ping\"}</tool_call>",
          "T(So:\n```\n<tool_call>{\"name\": \"ping\"}</tool_call>\n```)C(ping|{})");
    check("hermes", "```x``` <tool_call>{\"name\": \"ping\"}</tool_call>", "T(```x```)C(ping|{})");
    check("hermes", "run `ls`<tool_call>{\"name\": \"ping\"}</tool_call>", "T(run `ls`)C(ping|{})");
    check("hermes", "1. ```sh\n   ls\n   ```\n<tool_call>{\"name\": \"ping\"}</tool_call>", "T(1. ```sh\n   ls\n   ```)C(ping|{})");
    check("hermes", "So: ```sh\nls\n```\n<tool_call>{\"name\": \"ping\"}</tool_call>\n", "T(So: ```sh\nls\n```)C(ping|{})");
    check("hermes", "```\nls\n\n<tool_call>{\"name\": \"ping\"}</tool_call> and more",
          "T(```\nls\n\n<tool_call>{\"name\": \"ping\"}</tool_call> and more)");
    check("hermes", "```\nls\n<tool_call>{\"name\": \"pi", "T(```\nls\n<tool_call>{\"name\": \"pi)");
    check("hermes", "```\n<tool_call>{\"name\": \"nope\"}</tool_call>\n", "T(```\n<tool_call>{\"name\": \"nope\"}</tool_call>\n)");
    check("hermes", "<tool_call>{\"city\": \"B\"}</tool_call> no", "T(<tool_call>{\"city\": \"B\"}</tool_call> no)");
    check("hermes", "a </tool_call> b", "T(a </tool_call> b)");
    check("hermes", "\xFF\xE2\x82z\xF0\x9F\x99\x82", "T(\xEF\xBF\xBD\xEF\xBF\xBDz\xF0\x9F\x99\x82)");
    check("hermes", "ends in \xE2\x82", "T(ends in \xEF\xBF\xBD)");
    m5_json *all = tools;
    tools = NULL;
    check("hermes", "<tool_call>{\"name\": \"ping\"}</tool_call>", "T(<tool_call>{\"name\": \"ping\"}</tool_call>)");
    tools = all;
}

static void test_broken(void)
{
    const char *ping = "C(ping|{\"a\": 1})~";
    check("hermes", "<tool_call>{\"name\": \"ping\", \"arguments\": {\"a\": 1}</tool_call>", ping);
    check("hermes", "<tool_call>{\"name\": \"ping\", \"arguments\": {\"a\": 1", ping);
    check("hermes", "<tool_call>{\"name\": \"ping\", \"arguments\": {\"a\": 1, \"b", ping);
    check("hermes", "<tool_call>{\"name\": \"ping\", \"arguments\": {\"a\": 1, \"b\":", ping);
    check("hermes", "<tool_call>{\"name\": \"ping\", \"arguments\": {\"a\": 1}}", "C(ping|{\"a\": 1})");
    check("hermes", "<tool_call>{\"name\": \"ping\", \"arguments\": {\"a\": 1}}}\n</tool_call></tool_call>\nok", "C(ping|{\"a\": 1})T(ok)");
    check("hermes", "<tool_call>{'name': 'ping', 'arguments': {'a': 'it\\'s', 'b': True, 'c': None,}}</tool_call>",
          "C(ping|{\"a\": \"it's\", \"b\": true, \"c\": null})");
    check("hermes", "<tool_call>{name: ping, arguments: {a: \"say \"hi\" twice\", b: .5 \"c\": [1 2,,], \"d\": -}}</tool_call>",
          "C(ping|{\"a\": \"say \\\"hi\\\" twice\", \"b\": \".5 \\\"c\\\": [1 2\", \"d\": \"-\"})~");
    check("hermes", "<tool_call>{\"name\": \"ping\", \"arguments\": {\"a\": \"x\ny\t\\d\", \"a\": 2, \"b\": {\"c\": 1, \"c\": [2]}}}</tool_call>",
          "C(ping|{\"a\": \"x\\ny\\t\\\\d\", \"b\": {\"c\": 1}})~");
    check("hermes", "<tool_call>{\"name\": \"ping\", \"arguments\": {\"a\": \"x\"\n\"b\": 2}}</tool_call>", "C(ping|{\"a\": \"x\", \"b\": 2})~");
    check("hermes", "<tool_call>{\"name\": \"pi", "T(<tool_call>{\"name\": \"pi)");
    check("hermes", "<tool_call>{\"name\": \"ping\", \"arguments\": {\"a\": [1, {\"b\": 2}</tool_call>\ntext",
          "C(ping|{\"a\": [1, {\"b\": 2}]})~T(text)");
    check("hermes", "<tool_call>{\"name\": \"ping\", \"arguments\": {\"a\": \"tru", "C(ping|{\"a\": \"tru\"})~");
    check("hermes", "<tool_call>{\"name\": \"ping\", \"arguments\": {\"a\": tru", "C(ping|{\"a\": true})~");
    check("hermes", "<tool_call>{\"name\": \"ping\", \"arguments\": {\"a\": 02134, \"b\": 1e999, \"c\": 0x1F, \"d\": 5 km}}</tool_call>",
          "C(ping|{\"a\": \"02134\", \"b\": \"1e999\", \"c\": 31, \"d\": \"5 km\"})~");
    check("hermes", "<tool_call>{\"name\": \"ping\", \"arguments\": {\"a\": 1}\nI called it.", "C(ping|{\"a\": 1})~T(I called it.)");
    check("hermes", "<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>",
          "C(ping|{})C(ping|{})");
}

static void test_qwen_xml(void)
{
    check("qwen_xml",
          "I look.\n\n<tool_call>\n<function=edit>\n<parameter=path>\na b.c\n</parameter>\n<parameter=text>\n  if (a < b) "
          "{\n\n</parameter>\n<parameter=line>\n30\n</parameter>\n"
          "<parameter=ratio>\n.5\n</parameter>\n<parameter=all>\nTrue\n</parameter>\n<parameter=opts>\n{'a': [1, "
          "None]}\n</parameter>\n<parameter=list>\n[\"x\", 2]\n</parameter>\n</function>\n</tool_call>",
          "T(I look.)C(edit|{\"path\": \"a b.c\", \"text\": \"  if (a < b) {\\n\", \"line\": 30, \"ratio\": 0.5, \"all\": true, \"opts\": {\"a\": "
          "[1, null]}, "
          "\"list\": [\"x\", 2]})");
    /* types: B18 */
    check("qwen_xml",
          "<function=edit><parameter=path>02134</parameter><parameter=line>None</parameter><parameter=note>null</parameter><parameter=any>02134</"
          "parameter>"
          "<parameter=mixed>7</parameter><parameter=must></parameter><parameter=ratio></parameter><parameter=all>maybe</parameter><parameter=new>1</"
          "parameter></function>",
          "C(edit|{\"path\": \"02134\", \"line\": null, \"note\": null, \"any\": \"02134\", \"mixed\": 7, \"must\": \"\", \"all\": \"maybe\", "
          "\"new\": \"1\"})");
    check("qwen_xml",
          "<function=edit><parameter=note>nullable</parameter><parameter=any>{\"a\": 1}</parameter><parameter=opts>not "
          "json</parameter><parameter=must>007</parameter></function>",
          "C(edit|{\"note\": \"nullable\", \"any\": {\"a\": 1}, \"opts\": \"not json\", \"must\": 7})");
    check("qwen_xml",
          "<function=get_weather><parameter=city>\"Bern\"</parameter><parameter=unit>\n1\n</parameter><parameter=days>3.0</parameter></function>",
          "C(get_weather|{\"city\": \"\\\"Bern\\\"\", \"unit\": \"1\", \"days\": 3})");
    /* lookalikes, forgotten and doubled tags */
    check("qwen_xml",
          "<tool_call>\n<function=edit>\n<parameter=text>\nx</parameter> "
          "y\n<parameter=z>\n</function>ish\n</parameter>\n<parameter=path>\np\n</parameter>\n</parameter>\n</function>\n</tool_call>",
          "C(edit|{\"text\": \"x</parameter> y\\n<parameter=z>\\n</function>ish\", \"path\": \"p\"})");
    check("qwen_xml", "<tool_call>\n<function=edit>\n<parameter=text>\nx\n<parameter=path>\np\n</function>\n</tool_call>",
          "C(edit|{\"text\": \"x\", \"path\": \"p\"})");
    check("qwen_xml", "<tool_call>\n<function=ping>\n</tool_call>", "C(ping|{})~");
    check("qwen_xml", "<tool_call>\n<function=edit>\n<parameter=text>\nx\ny", "C(edit|{\"text\": \"x\\ny\"})~");
    check("qwen_xml", "<tool_call>\n<function=edit>\n<parameter=text>\nx\n</param", "C(edit|{\"text\": \"x\"})~");
    check("qwen_xml",
          "<tool_call>\n<function=edit>\nwell <b>\n<parameter=text>\nx\n</parameter>\n<parameter=text>\nz\n</parameter>\n</function>\n</tool_call>",
          "C(edit|{\"text\": \"x\"})T(well <b>\n)");
    check("qwen_xml", "<tool_call>\n<function=ping></function><function=ping></function>\n</tool_call>\nbye", "C(ping|{})C(ping|{})T(bye)");
    check("qwen_xml", "<function=ping>{\"a\": 1}</function>", "C(ping|{\"a\": 1})");
    check("qwen_xml", "<function=\n", "T(<function=\n)");
    check("qwen_xml", "<function=edit><parameter=note> null\n</parameter><parameter=mixed>          null</parameter></function>",
          "C(edit|{\"note\": null, \"mixed\": \"          null\"})");
    check("qwen_xml", "<function=edit><parameter=note>                                                                null</parameter></function>",
          "C(edit|{\"note\": \"                                                                null\"})");
    check("invoke",
          "<invoke name=\"f\"><parameter name=\"a\" string=\"false\">1</parameter><parameter name=\"b\" string=\"true\">1</parameter></invoke>",
          "C(?f|{\"a\": 1, \"b\": \"1\"})");
    check("qwen_xml", "<function=edit><parameter=any>[x]</parameter><parameter=mixed>3.5</parameter></function>",
          "C(edit|{\"any\": \"[x]\", \"mixed\": \"3.5\"})");
    check("qwen_xml", "<tool_call><function=nope><parameter=k>1</parameter></function></tool_call>", "C(?nope|{\"k\": \"1\"})");
    check("qwen_xml", "<tool_call>{\"name\": \"ping\", \"arguments\": {}}</tool_call>", "C(ping|{})");
}

static void test_others(void)
{
    check("glm",
          "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Bern\n</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</"
          "tool_call>\n<tool_call>ping\n</tool_call>.",
          "C(get_weather|{\"city\": \"Bern\\n\", \"days\": 2})C(ping|{})T(.)");
    check("invoke",
          "<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">B</parameter>\n</invoke>\n<invoke "
          "name=\"ping\">\n</invoke>\n</minimax:tool_call>",
          "C(get_weather|{\"city\": \"B\"})C(ping|{})");
    check("llama3", "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"B\"}}", "C(get_weather|{\"city\": \"B\"})");
    check("llama3",
          "<|python_tag|>{\"type\": \"function\", \"name\": \"get_weather\", \"parameters\": {\"city\": \"B\"}}; {\"name\": \"ping\", "
          "\"parameters\": {}}<|eom_id|>",
          "C(get_weather|{\"city\": \"B\"})C(ping|{})");
    check("llama3", "{\"name\": \"nope\", \"parameters\": {}}", "T({\"name\": \"nope\", \"parameters\": {}})");
    check("llama3", "{\"name\": \"ping\", \"age\": 3}\n{\"a\": 1}", "T({\"name\": \"ping\", \"age\": 3}\n{\"a\": 1})");
    check("llama3", "See {\"name\": \"ping\", \"parameters\": {}}", "T(See {\"name\": \"ping\", \"parameters\": {}})");
    check("llama3", "<|python_tag|>get_weather.call(city=\"B\")", "C(get_weather|{\"city\": \"B\"})");
    check("mistral",
          "[TOOL_CALLS][{\"name\": \"ping\", \"arguments\": {}, \"id\": \"abc\"}, {\"name\": \"get_weather\", \"arguments\": {\"city\": \"B\"}}]",
          "C(ping|{})C(get_weather|{\"city\": \"B\"})");
    check("mistral", "hm [TOOL_CALLS]get_weather[ARGS]{\"city\": \"B\"}[TOOL_CALLS]ping[CALL_ID]abcdef123[ARGS]{}",
          "T(hm)C(get_weather|{\"city\": \"B\"})C(ping|{})");
    check("mistral", "[TOOL_CALLS] is a mark, see {x} [TOOL_CALLS]ping", "T([TOOL_CALLS] is a mark, see {x})C(ping|{})~");
    check("gemma4",
          "<|tool_call>call:get_weather{city:<|\"|>a \"b\" "
          "{c}\n<|\"|>,days:2}<tool_call|><|tool_call>call:edit{opts:{a:true,b:None},list:[<|\"|>x<|\"|>,1.5]}<tool_call|>",
          "C(get_weather|{\"city\": \"a \\\"b\\\" {c}\\n\", \"days\": 2})C(edit|{\"opts\": {\"a\": true, \"b\": null}, \"list\": [\"x\", 1.5]})");
    check("gemma4", "<|tool_call>call:ping{}<tool_call|>", "C(ping|{})");
    check("gemma4", "<|tool_call>call:get_weather{city:<|\"|>abc", "C(get_weather|{\"city\": \"abc\"})~");
    check("deepseek",
          "<\xEF\xBD\x9Ctool\xE2\x96\x81"
          "calls\xE2\x96\x81"
          "begin\xEF\xBD\x9C><\xEF\xBD\x9Ctool\xE2\x96\x81"
          "call\xE2\x96\x81"
          "begin\xEF\xBD\x9C>get_weather<\xEF\xBD\x9Ctool\xE2\x96\x81sep\xEF\xBD\x9C>{\"city\": \"B\"}<\xEF\xBD\x9Ctool\xE2\x96\x81"
          "call\xE2\x96\x81"
          "end\xEF\xBD\x9C><\xEF\xBD\x9Ctool\xE2\x96\x81"
          "call\xE2\x96\x81"
          "begin\xEF\xBD\x9C>function<\xEF\xBD\x9Ctool\xE2\x96\x81sep\xEF\xBD\x9C>ping\n```json\n{\"a\": 1}\n```<\xEF\xBD\x9Ctool\xE2\x96\x81"
          "call\xE2\x96\x81"
          "end\xEF\xBD\x9C><\xEF\xBD\x9Ctool\xE2\x96\x81"
          "calls\xE2\x96\x81"
          "end\xEF\xBD\x9C>",
          "C(get_weather|{\"city\": \"B\"})C(ping|{\"a\": 1})");
    check("pythonic", "[get_weather(city=r'it\\'s \"B\"', days=2), ping()]", "C(get_weather|{\"city\": \"it's \\\"B\\\"\", \"days\": 2})C(ping|{})");
    check("pythonic", "<|tool_call_start|>[edit(\"p\", opts={'a': (1, 2), 'b': None}, all=True, text=\"\"\"x \"y\"\nz\"\"\")]<|tool_call_end|>Fine",
          "C(edit|{\"path\": \"p\", \"opts\": {\"a\": [1, 2], \"b\": null}, \"all\": true, \"text\": \"x \\\"y\\\"\\nz\"})T(Fine)");
    check("pythonic", "[ping()] ping()", "C(ping|{})T(ping())");
    check("glm",
          "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>x</arg_v>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
          "C(get_weather|{\"city\": \"x</arg_v>\\n\", \"days\": 2})");
    check("pythonic", "[1, 2] and [nope(1)]\nget_weather(city) is a function", "T([1, 2] and [nope(1)]\nget_weather(city) is a function)");
}

/* Arguments go out while they come. */
static void streams(const char *name, const char *text, const char *want)
{
    m5_toolcall_format *f = format(name);
    m5_toolcall *p = NULL;
    result r = {.open = -1};
    m5_toolcall_args args = {.format = f, .tools = tools, .parallel = true, .fn = on_event, .arg = &r};
    T_EQ_INT(m5_toolcall_new(&p, &args, NULL), 0);
    T_EQ_INT(m5_toolcall_push(p, text, strlen(text)), 0);
    T_EQ_STR(r.args.p ? r.args.p : "", want);
    T_CHECK(r.open == 0 && m5_toolcall_open(p) && m5_toolcall_count(p) == 1 && !m5_toolcall_done(p));
    T_EQ_INT(m5_toolcall_finish(p), 0);
    T_CHECK(r.open < 0 && !m5_toolcall_open(p));
    T_EQ_INT(m5_toolcall_push(p, "x", 1), 0);
    T_CHECK(r.text.n == 0);
    m5_toolcall_free(p);
    m5_toolcall_format_free(f);
    drop(&r);
}

static void test_streaming(void)
{
    streams("hermes", "a<tool_call>{\"name\": \"edit\", \"arguments\": {\"text\": \"abc", "{\"text\": \"abc");
    streams("hermes", "<tool_call>{\"name\": \"edit\", \"arguments\": \"{\\\"text\\\": \\\"abc", "{\"text\": \"abc");
    streams("qwen_xml", "<tool_call><function=edit><parameter=text>\nabc", "{\"text\": \"abc");
    streams("qwen_xml", "<tool_call><function=edit><parameter=note>\nabc", "{\"note\": \"abc");
    streams("qwen_xml", "<tool_call><function=edit><parameter=list>\n[{'a': 1, \"b\": \"x", "{\"list\": [{\"a\": 1, \"b\": \"x");
    streams("glm", "<tool_call>edit\n<arg_key>text</arg_key><arg_value>abc", "{\"text\": \"abc");
    streams("llama3", "{\"name\": \"edit\", \"parameters\": {\"text\": \"abc", "{\"text\": \"abc");
    streams("mistral", "[TOOL_CALLS]edit[ARGS]{\"text\": \"abc", "{\"text\": \"abc");
    streams("gemma4", "<|tool_call>call:edit{text:<|\"|>abc", "{\"text\": \"abc");
    streams("pythonic", "[edit(text='abc", "{\"text\": \"abc");
}

static void test_parallel_and_prefix(void)
{
    m5_toolcall_format *f = format("hermes");
    check_with(
        f, false, NULL,
        "a<tool_call>{\"name\": \"ping\", \"arguments\": {}}</tool_call>\n<tool_call>{\"name\": \"edit\", \"arguments\": {\"a\": 1}}</tool_call>b",
        "T(a)C(ping|{})T(b)");
    m5_buf b = {0};
    m5_toolcall_opening(f, "get_weather", &b);
    T_EQ_STR(b.p, "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": ");
    check_with(f, true, b.p, "{\"city\": \"B\"}}\n</tool_call>", "C(get_weather|{\"city\": \"B\"})");
    m5_buf_clear(&b);
    m5_toolcall_opening(f, NULL, &b);
    check_with(f, true, b.p, "ping\", \"arguments\": {}}\n</tool_call>", "C(ping|{})");
    m5_toolcall_format_free(f);
    f = format("qwen_xml");
    m5_buf_clear(&b);
    m5_toolcall_opening(f, "get_weather", &b);
    check_with(f, true, b.p, "<parameter=city>\nB\n</parameter>\n</function>\n</tool_call>", "C(get_weather|{\"city\": \"B\"})");
    m5_buf_free(&b);
    m5_toolcall_format_free(f);
}

int main(void)
{
    if (m5_json_parse(&tools, tools_text, sizeof tools_text - 1, NULL, NULL) != 0) return 1;
    test_hermes();
    test_content();
    test_broken();
    test_qwen_xml();
    test_others();
    test_streaming();
    test_parallel_and_prefix();
    m5_json_unref(tools);
    return t_done();
}
