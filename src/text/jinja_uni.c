/* SPDX-License-Identifier: Apache-2.0 */
/* Unicode classes and case mapping as Python's str sees them. Simple mappings and categories come from utf8proc; the mappings to several code points
 * (SpecialCasing.txt of the Unicode data, unconditional entries) are tabulated here. Nothing of Jinja is here but the title filter's word rule. */
#include "text/jinja_internal.h"

#include <utf8proc.h>

typedef struct special {
    uint32_t cp, upper[3], title[3];
} special;
static const special specials[] = {
    {0xDF, {0x53, 0x53, 0}, {0x53, 0x73, 0}},
    {0x149, {0x2BC, 0x4E, 0}, {0x2BC, 0x4E, 0}},
    {0x1F0, {0x4A, 0x30C, 0}, {0x4A, 0x30C, 0}},
    {0x390, {0x399, 0x308, 0x301}, {0x399, 0x308, 0x301}},
    {0x3B0, {0x3A5, 0x308, 0x301}, {0x3A5, 0x308, 0x301}},
    {0x587, {0x535, 0x552, 0}, {0x535, 0x582, 0}},
    {0x1E96, {0x48, 0x331, 0}, {0x48, 0x331, 0}},
    {0x1E97, {0x54, 0x308, 0}, {0x54, 0x308, 0}},
    {0x1E98, {0x57, 0x30A, 0}, {0x57, 0x30A, 0}},
    {0x1E99, {0x59, 0x30A, 0}, {0x59, 0x30A, 0}},
    {0x1E9A, {0x41, 0x2BE, 0}, {0x41, 0x2BE, 0}},
    {0x1F50, {0x3A5, 0x313, 0}, {0x3A5, 0x313, 0}},
    {0x1F52, {0x3A5, 0x313, 0x300}, {0x3A5, 0x313, 0x300}},
    {0x1F54, {0x3A5, 0x313, 0x301}, {0x3A5, 0x313, 0x301}},
    {0x1F56, {0x3A5, 0x313, 0x342}, {0x3A5, 0x313, 0x342}},
    {0x1F80, {0x1F08, 0x399, 0}, {0x1F88, 0, 0}},
    {0x1F81, {0x1F09, 0x399, 0}, {0x1F89, 0, 0}},
    {0x1F82, {0x1F0A, 0x399, 0}, {0x1F8A, 0, 0}},
    {0x1F83, {0x1F0B, 0x399, 0}, {0x1F8B, 0, 0}},
    {0x1F84, {0x1F0C, 0x399, 0}, {0x1F8C, 0, 0}},
    {0x1F85, {0x1F0D, 0x399, 0}, {0x1F8D, 0, 0}},
    {0x1F86, {0x1F0E, 0x399, 0}, {0x1F8E, 0, 0}},
    {0x1F87, {0x1F0F, 0x399, 0}, {0x1F8F, 0, 0}},
    {0x1F88, {0x1F08, 0x399, 0}, {0x1F88, 0, 0}},
    {0x1F89, {0x1F09, 0x399, 0}, {0x1F89, 0, 0}},
    {0x1F8A, {0x1F0A, 0x399, 0}, {0x1F8A, 0, 0}},
    {0x1F8B, {0x1F0B, 0x399, 0}, {0x1F8B, 0, 0}},
    {0x1F8C, {0x1F0C, 0x399, 0}, {0x1F8C, 0, 0}},
    {0x1F8D, {0x1F0D, 0x399, 0}, {0x1F8D, 0, 0}},
    {0x1F8E, {0x1F0E, 0x399, 0}, {0x1F8E, 0, 0}},
    {0x1F8F, {0x1F0F, 0x399, 0}, {0x1F8F, 0, 0}},
    {0x1F90, {0x1F28, 0x399, 0}, {0x1F98, 0, 0}},
    {0x1F91, {0x1F29, 0x399, 0}, {0x1F99, 0, 0}},
    {0x1F92, {0x1F2A, 0x399, 0}, {0x1F9A, 0, 0}},
    {0x1F93, {0x1F2B, 0x399, 0}, {0x1F9B, 0, 0}},
    {0x1F94, {0x1F2C, 0x399, 0}, {0x1F9C, 0, 0}},
    {0x1F95, {0x1F2D, 0x399, 0}, {0x1F9D, 0, 0}},
    {0x1F96, {0x1F2E, 0x399, 0}, {0x1F9E, 0, 0}},
    {0x1F97, {0x1F2F, 0x399, 0}, {0x1F9F, 0, 0}},
    {0x1F98, {0x1F28, 0x399, 0}, {0x1F98, 0, 0}},
    {0x1F99, {0x1F29, 0x399, 0}, {0x1F99, 0, 0}},
    {0x1F9A, {0x1F2A, 0x399, 0}, {0x1F9A, 0, 0}},
    {0x1F9B, {0x1F2B, 0x399, 0}, {0x1F9B, 0, 0}},
    {0x1F9C, {0x1F2C, 0x399, 0}, {0x1F9C, 0, 0}},
    {0x1F9D, {0x1F2D, 0x399, 0}, {0x1F9D, 0, 0}},
    {0x1F9E, {0x1F2E, 0x399, 0}, {0x1F9E, 0, 0}},
    {0x1F9F, {0x1F2F, 0x399, 0}, {0x1F9F, 0, 0}},
    {0x1FA0, {0x1F68, 0x399, 0}, {0x1FA8, 0, 0}},
    {0x1FA1, {0x1F69, 0x399, 0}, {0x1FA9, 0, 0}},
    {0x1FA2, {0x1F6A, 0x399, 0}, {0x1FAA, 0, 0}},
    {0x1FA3, {0x1F6B, 0x399, 0}, {0x1FAB, 0, 0}},
    {0x1FA4, {0x1F6C, 0x399, 0}, {0x1FAC, 0, 0}},
    {0x1FA5, {0x1F6D, 0x399, 0}, {0x1FAD, 0, 0}},
    {0x1FA6, {0x1F6E, 0x399, 0}, {0x1FAE, 0, 0}},
    {0x1FA7, {0x1F6F, 0x399, 0}, {0x1FAF, 0, 0}},
    {0x1FA8, {0x1F68, 0x399, 0}, {0x1FA8, 0, 0}},
    {0x1FA9, {0x1F69, 0x399, 0}, {0x1FA9, 0, 0}},
    {0x1FAA, {0x1F6A, 0x399, 0}, {0x1FAA, 0, 0}},
    {0x1FAB, {0x1F6B, 0x399, 0}, {0x1FAB, 0, 0}},
    {0x1FAC, {0x1F6C, 0x399, 0}, {0x1FAC, 0, 0}},
    {0x1FAD, {0x1F6D, 0x399, 0}, {0x1FAD, 0, 0}},
    {0x1FAE, {0x1F6E, 0x399, 0}, {0x1FAE, 0, 0}},
    {0x1FAF, {0x1F6F, 0x399, 0}, {0x1FAF, 0, 0}},
    {0x1FB2, {0x1FBA, 0x399, 0}, {0x1FBA, 0x345, 0}},
    {0x1FB3, {0x391, 0x399, 0}, {0x1FBC, 0, 0}},
    {0x1FB4, {0x386, 0x399, 0}, {0x386, 0x345, 0}},
    {0x1FB6, {0x391, 0x342, 0}, {0x391, 0x342, 0}},
    {0x1FB7, {0x391, 0x342, 0x399}, {0x391, 0x342, 0x345}},
    {0x1FBC, {0x391, 0x399, 0}, {0x1FBC, 0, 0}},
    {0x1FC2, {0x1FCA, 0x399, 0}, {0x1FCA, 0x345, 0}},
    {0x1FC3, {0x397, 0x399, 0}, {0x1FCC, 0, 0}},
    {0x1FC4, {0x389, 0x399, 0}, {0x389, 0x345, 0}},
    {0x1FC6, {0x397, 0x342, 0}, {0x397, 0x342, 0}},
    {0x1FC7, {0x397, 0x342, 0x399}, {0x397, 0x342, 0x345}},
    {0x1FCC, {0x397, 0x399, 0}, {0x1FCC, 0, 0}},
    {0x1FD2, {0x399, 0x308, 0x300}, {0x399, 0x308, 0x300}},
    {0x1FD3, {0x399, 0x308, 0x301}, {0x399, 0x308, 0x301}},
    {0x1FD6, {0x399, 0x342, 0}, {0x399, 0x342, 0}},
    {0x1FD7, {0x399, 0x308, 0x342}, {0x399, 0x308, 0x342}},
    {0x1FE2, {0x3A5, 0x308, 0x300}, {0x3A5, 0x308, 0x300}},
    {0x1FE3, {0x3A5, 0x308, 0x301}, {0x3A5, 0x308, 0x301}},
    {0x1FE4, {0x3A1, 0x313, 0}, {0x3A1, 0x313, 0}},
    {0x1FE6, {0x3A5, 0x342, 0}, {0x3A5, 0x342, 0}},
    {0x1FE7, {0x3A5, 0x308, 0x342}, {0x3A5, 0x308, 0x342}},
    {0x1FF2, {0x1FFA, 0x399, 0}, {0x1FFA, 0x345, 0}},
    {0x1FF3, {0x3A9, 0x399, 0}, {0x1FFC, 0, 0}},
    {0x1FF4, {0x38F, 0x399, 0}, {0x38F, 0x345, 0}},
    {0x1FF6, {0x3A9, 0x342, 0}, {0x3A9, 0x342, 0}},
    {0x1FF7, {0x3A9, 0x342, 0x399}, {0x3A9, 0x342, 0x345}},
    {0x1FFC, {0x3A9, 0x399, 0}, {0x1FFC, 0, 0}},
    {0xFB00, {0x46, 0x46, 0}, {0x46, 0x66, 0}},
    {0xFB01, {0x46, 0x49, 0}, {0x46, 0x69, 0}},
    {0xFB02, {0x46, 0x4C, 0}, {0x46, 0x6C, 0}},
    {0xFB03, {0x46, 0x46, 0x49}, {0x46, 0x66, 0x69}},
    {0xFB04, {0x46, 0x46, 0x4C}, {0x46, 0x66, 0x6C}},
    {0xFB05, {0x53, 0x54, 0}, {0x53, 0x74, 0}},
    {0xFB06, {0x53, 0x54, 0}, {0x53, 0x74, 0}},
    {0xFB13, {0x544, 0x546, 0}, {0x544, 0x576, 0}},
    {0xFB14, {0x544, 0x535, 0}, {0x544, 0x565, 0}},
    {0xFB15, {0x544, 0x53B, 0}, {0x544, 0x56B, 0}},
    {0xFB16, {0x54E, 0x546, 0}, {0x54E, 0x576, 0}},
    {0xFB17, {0x544, 0x53D, 0}, {0x544, 0x56D, 0}},
};

typedef struct span {
    uint32_t first, last;
} span;

static bool in_spans(uint32_t c, const span *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (c < s[i].first) return false;
        if (c <= s[i].last) return true;
    }
    return false;
}
#define IN_SPANS(c, s) in_spans((c), (s), sizeof(s) / sizeof *(s))

static int category(uint32_t c)
{
    return c > 0x10FFFF ? UTF8PROC_CATEGORY_CN : (int)utf8proc_category((utf8proc_int32_t)c);
}

bool m5_ju_space(uint32_t c)
{
    static const span spaces[] = {{9, 13},          {28, 32},         {0x85, 0x85},     {0xA0, 0xA0},     {0x1680, 0x1680},
                                  {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}};
    if (c < 128) return c == 32 || (c >= 9 && c <= 13) || (c >= 28 && c <= 31);
    return IN_SPANS(c, spaces);
}

bool m5_ju_alpha(uint32_t c)
{
    if (c < 128) return (c | 32) >= 'a' && (c | 32) <= 'z';
    int k = category(c);
    return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

bool m5_ju_decimal(uint32_t c)
{
    if (c < 128) return c >= '0' && c <= '9';
    return category(c) == UTF8PROC_CATEGORY_ND;
}

int m5_ju_decimal_value(uint32_t c)
{
    if (c < 128) return c >= '0' && c <= '9' ? (int)c - '0' : -1;
    if (!m5_ju_decimal(c)) return -1;
    uint32_t zero = c; /* decimal digits come in gapless runs of ten */
    while (zero > 128 && m5_ju_decimal(zero - 1)) zero--;
    return (int)((c - zero) % 10);
}

bool m5_ju_digit(uint32_t c)
{
    static const span digits[] = {{0xB2, 0xB3},     {0xB9, 0xB9},       {0x1369, 0x1371},   {0x19DA, 0x19DA},   {0x2070, 0x2070},
                                  {0x2074, 0x2079}, {0x2080, 0x2089},   {0x2460, 0x2468},   {0x2474, 0x247C},   {0x2488, 0x2490},
                                  {0x24EA, 0x24EA}, {0x24F5, 0x24FD},   {0x24FF, 0x24FF},   {0x2776, 0x277E},   {0x2780, 0x2788},
                                  {0x278A, 0x2792}, {0x10A40, 0x10A43}, {0x10E60, 0x10E68}, {0x11052, 0x1105A}, {0x1F100, 0x1F10A}};
    return m5_ju_decimal(c) || (c >= 128 && IN_SPANS(c, digits));
}

bool m5_ju_numeric(uint32_t c)
{
    static const span han[] = {
        {0x3405, 0x3405},   {0x3483, 0x3483},   {0x382A, 0x382A},   {0x3B4D, 0x3B4D},   {0x4E00, 0x4E00},   {0x4E03, 0x4E03},   {0x4E07, 0x4E07},
        {0x4E09, 0x4E09},   {0x4E5D, 0x4E5D},   {0x4E8C, 0x4E8C},   {0x4E94, 0x4E94},   {0x4E96, 0x4E96},   {0x4EBF, 0x4EC0},   {0x4EDF, 0x4EDF},
        {0x4EE8, 0x4EE8},   {0x4F0D, 0x4F0D},   {0x4F70, 0x4F70},   {0x5104, 0x5104},   {0x5146, 0x5146},   {0x5169, 0x5169},   {0x516B, 0x516B},
        {0x516D, 0x516D},   {0x5341, 0x5341},   {0x5343, 0x5345},   {0x534C, 0x534C},   {0x53C1, 0x53C4},   {0x56DB, 0x56DB},   {0x58F1, 0x58F1},
        {0x58F9, 0x58F9},   {0x5E7A, 0x5E7A},   {0x5EFE, 0x5EFF},   {0x5F0C, 0x5F0E},   {0x5F10, 0x5F10},   {0x62FE, 0x62FE},   {0x634C, 0x634C},
        {0x67D2, 0x67D2},   {0x6F06, 0x6F06},   {0x7396, 0x7396},   {0x767E, 0x767E},   {0x8086, 0x8086},   {0x842C, 0x842C},   {0x8CAE, 0x8CAE},
        {0x8CB3, 0x8CB3},   {0x8D30, 0x8D30},   {0x9621, 0x9621},   {0x9646, 0x9646},   {0x964C, 0x964C},   {0x9678, 0x9678},   {0x96F6, 0x96F6},
        {0xF96B, 0xF96B},   {0xF973, 0xF973},   {0xF978, 0xF978},   {0xF9B2, 0xF9B2},   {0xF9D1, 0xF9D1},   {0xF9D3, 0xF9D3},   {0xF9FD, 0xF9FD},
        {0x20001, 0x20001}, {0x20064, 0x20064}, {0x200E2, 0x200E2}, {0x20121, 0x20121}, {0x2092A, 0x2092A}, {0x20983, 0x20983}, {0x2098C, 0x2098C},
        {0x2099C, 0x2099C}, {0x20AEA, 0x20AEA}, {0x20AFD, 0x20AFD}, {0x20B19, 0x20B19}, {0x22390, 0x22390}, {0x22998, 0x22998}, {0x23B1B, 0x23B1B},
        {0x2626D, 0x2626D}, {0x2F890, 0x2F890}};
    int k = category(c);
    return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO || IN_SPANS(c, han);
}

bool m5_ju_alnum(uint32_t c)
{
    return m5_ju_alpha(c) || m5_ju_numeric(c);
}

bool m5_ju_word(uint32_t c)
{
    return c == '_' || m5_ju_alnum(c);
}

bool m5_ju_ident_start(uint32_t c)
{
    return c == '_' || m5_ju_alpha(c) || category(c) == UTF8PROC_CATEGORY_NL;
}

bool m5_ju_ident_part(uint32_t c)
{
    if (c < 128) return m5_ju_word(c);
    int k = category(c);
    return m5_ju_ident_start(c) || k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_MC || k == UTF8PROC_CATEGORY_PC;
}

/* Other_Lowercase and Other_Uppercase of PropList.txt. */
static bool other_lower(uint32_t c)
{
    static const span spans[] = {{0xAA, 0xAA},     {0xBA, 0xBA},     {0x2B0, 0x2B8},     {0x2C0, 0x2C1},     {0x2E0, 0x2E4},     {0x345, 0x345},
                                 {0x37A, 0x37A},   {0x1D2C, 0x1D6A}, {0x1D78, 0x1D78},   {0x1D9B, 0x1DBF},   {0x2071, 0x2071},   {0x207F, 0x207F},
                                 {0x2090, 0x209C}, {0x2170, 0x217F}, {0x24D0, 0x24E9},   {0x2C7C, 0x2C7D},   {0xA69C, 0xA69D},   {0xA770, 0xA770},
                                 {0xA7F8, 0xA7F9}, {0xAB5C, 0xAB5F}, {0x10780, 0x10780}, {0x10783, 0x10785}, {0x10787, 0x107B0}, {0x107B2, 0x107BA}};
    return c >= 128 && IN_SPANS(c, spans);
}

static bool other_upper(uint32_t c)
{
    static const span spans[] = {{0x2160, 0x216F}, {0x24B6, 0x24CF}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}};
    return c >= 128 && IN_SPANS(c, spans);
}

bool m5_ju_upper(uint32_t c)
{
    if (c < 128) return c >= 'A' && c <= 'Z';
    return category(c) == UTF8PROC_CATEGORY_LU || other_upper(c);
}

bool m5_ju_lower(uint32_t c)
{
    if (c < 128) return c >= 'a' && c <= 'z';
    return category(c) == UTF8PROC_CATEGORY_LL || other_lower(c);
}

bool m5_ju_titlecase(uint32_t c)
{
    return c >= 128 && category(c) == UTF8PROC_CATEGORY_LT;
}

bool m5_ju_cased(uint32_t c)
{
    return m5_ju_upper(c) || m5_ju_lower(c) || m5_ju_titlecase(c);
}

bool m5_ju_case_ignorable(uint32_t c)
{
    static const span marks[] = {{0x27, 0x27},     {0x2E, 0x2E},     {0x3A, 0x3A},     {0xB7, 0xB7},     {0x387, 0x387},   {0x55F, 0x55F},
                                 {0x5F4, 0x5F4},   {0x2018, 0x2019}, {0x2024, 0x2024}, {0x2027, 0x2027}, {0xFE13, 0xFE13}, {0xFE52, 0xFE52},
                                 {0xFE55, 0xFE55}, {0xFF07, 0xFF07}, {0xFF0E, 0xFF0E}, {0xFF1A, 0xFF1A}};
    int k = category(c);
    return k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_ME || k == UTF8PROC_CATEGORY_CF || k == UTF8PROC_CATEGORY_LM ||
           k == UTF8PROC_CATEGORY_SK || IN_SPANS(c, marks);
}

bool m5_ju_printable(uint32_t c)
{
    if (c < 128) return c >= 32 && c < 127;
    switch (category(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
    }
}

static const special *find_special(uint32_t c)
{
    size_t lo = 0, hi = sizeof specials / sizeof *specials;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (specials[mid].cp == c) return &specials[mid];
        if (specials[mid].cp < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

int m5_ju_map(uint32_t c, ju_case how, uint32_t out[4])
{
    out[0] = c;
    if (c < 128) {
        if (how == JU_UPPER || how == JU_TITLE)
            out[0] = c >= 'a' && c <= 'z' ? c - 32 : c;
        else
            out[0] = c >= 'A' && c <= 'Z' ? c + 32 : c;
        return 1;
    }
    if (how == JU_FOLD) {
        int last_class = 0;
        utf8proc_int32_t folded[8];
        utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)c, folded, 8, UTF8PROC_CASEFOLD, &last_class);
        if (n < 1 || n > 4) return 1;
        for (int i = 0; i < (int)n; i++) out[i] = (uint32_t)folded[i];
        return (int)n;
    }
    if (how == JU_LOWER) {
        if (c == 0x130) { /* the one unconditional lower-case expansion */
            out[0] = 'i';
            out[1] = 0x307;
            return 2;
        }
        out[0] = (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
        return 1;
    }
    const special *s = find_special(c);
    if (!s) {
        out[0] = (uint32_t)(how == JU_UPPER ? utf8proc_toupper((utf8proc_int32_t)c) : utf8proc_totitle((utf8proc_int32_t)c));
        return 1;
    }
    const uint32_t *to = how == JU_UPPER ? s->upper : s->title;
    int n = 0;
    while (n < 3 && to[n]) {
        out[n] = to[n];
        n++;
    }
    return n;
}

/* Capital sigma is written as final sigma when a cased letter stands before it and none after (Unicode 3.13, Final_Sigma). */
static bool final_sigma(const jstr *s, size_t at, size_t after)
{
    uint32_t c = 0;
    size_t i = at;
    while (i > 0) {
        c = m5_jstr_cp_back(s, &i);
        if (!m5_ju_case_ignorable(c)) break;
        c = 0;
    }
    if (!c || !m5_ju_cased(c)) return false;
    i = after;
    while (i < s->n) {
        c = m5_jstr_cp(s, &i);
        if (!m5_ju_case_ignorable(c)) return !m5_ju_cased(c);
    }
    return true;
}

static void put_mapped(jrt *rt, const jstr *s, size_t at, size_t after, uint32_t c, ju_case how, bool trusted)
{
    uint32_t out[4];
    if (how == JU_LOWER && c == 0x3A3) {
        m5_j_put_cp(rt, final_sigma(s, at, after) ? 0x3C2 : 0x3C3, trusted);
        return;
    }
    int n = m5_ju_map(c, how, out);
    for (int i = 0; i < n; i++) m5_j_put_cp(rt, out[i], trusted);
}

typedef enum style { ST_UPPER, ST_LOWER, ST_FOLD, ST_SWAP, ST_CAPITALIZE, ST_TITLE, ST_TITLE_WORDS } style;

static bool word_break(uint32_t c)
{
    return c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || m5_ju_space(c);
}

static jstr *restyle(jrt *rt, const jstr *s, style st)
{
    s = m5_jstr_flat(rt, s);
    m5_j_step(rt, s->n / 16);
    jmark m = m5_j_begin(rt);
    bool first = true, prev_cased = false;
    size_t run = 0;
    for (size_t i = 0; i < s->n;) {
        size_t at = i;
        uint32_t c = m5_jstr_cp(s, &i);
        bool trusted = m5_jstr_trusted_at(s, at, &run);
        ju_case how = JU_LOWER;
        switch (st) {
        case ST_UPPER: how = JU_UPPER; break;
        case ST_LOWER: break;
        case ST_FOLD: how = JU_FOLD; break;
        case ST_SWAP: how = m5_ju_lower(c) ? JU_UPPER : JU_LOWER; break;
        case ST_CAPITALIZE: how = first ? JU_TITLE : JU_LOWER; break;
        case ST_TITLE: how = prev_cased ? JU_LOWER : JU_TITLE; break;
        case ST_TITLE_WORDS: how = first ? JU_UPPER : JU_LOWER; break;
        }
        if (st == ST_SWAP && !m5_ju_lower(c) && !m5_ju_upper(c))
            m5_j_put_cp(rt, c, trusted);
        else
            put_mapped(rt, s, at, i, c, how, trusted);
        first = st == ST_TITLE_WORDS && word_break(c);
        prev_cased = m5_ju_cased(c);
    }
    return m5_j_end(rt, m);
}

/* Plain ASCII, the usual case, is mapped in one copy. */
static jstr *restyle_ascii(jrt *rt, const jstr *s, bool upper)
{
    s = m5_jstr_flat(rt, s);
    jstr *r = m5_j_alloc(rt, sizeof *r);
    char *p = m5_j_alloc(rt, s->n + 1);
    for (size_t i = 0; i < s->n; i++) {
        char c = s->p[i];
        p[i] = upper ? (c >= 'a' && c <= 'z' ? (char)(c - 32) : c) : (c >= 'A' && c <= 'Z' ? (char)(c + 32) : c);
    }
    *r = *s;
    r->p = p;
    r->hashed = false;
    r->safe = false;
    return r;
}

static bool is_ascii(jrt *rt, const jstr *s)
{
    return m5_jstr_len(rt, s) == (int64_t)s->n;
}

jstr *m5_ju_str_upper(jrt *rt, const jstr *s)
{
    return is_ascii(rt, s) ? restyle_ascii(rt, s, true) : restyle(rt, s, ST_UPPER);
}

jstr *m5_ju_str_lower(jrt *rt, const jstr *s)
{
    return is_ascii(rt, s) ? restyle_ascii(rt, s, false) : restyle(rt, s, ST_LOWER);
}

jstr *m5_ju_str_fold(jrt *rt, const jstr *s)
{
    return restyle(rt, s, ST_FOLD);
}

jstr *m5_ju_str_swapcase(jrt *rt, const jstr *s)
{
    return restyle(rt, s, ST_SWAP);
}

jstr *m5_ju_str_capitalize(jrt *rt, const jstr *s)
{
    return restyle(rt, s, ST_CAPITALIZE);
}

jstr *m5_ju_str_title(jrt *rt, const jstr *s)
{
    return restyle(rt, s, ST_TITLE);
}

jstr *m5_ju_str_title_words(jrt *rt, const jstr *s)
{
    return restyle(rt, s, ST_TITLE_WORDS);
}
