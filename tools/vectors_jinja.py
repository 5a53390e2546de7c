#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/vectors/jinja.jsonl: templates and what Jinja2 makes of them, in the environment in which chat templates are rendered (immutable sandbox,
trim_blocks, lstrip_blocks, loop controls, a `generation` tag, tojson without HTML escaping, raise_exception, strftime_now).

Each line: {"t": template, "v": name of a variable set or the variables, "text": result} or {..., "error": true}. The first line holds the variable sets.
Only whether an error happens is recorded; its wording is ours. Needs the jinja2 package (3.1.5 or newer). Run: tools/vectors_jinja.py
"""
import datetime
import json
import os

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

NOW = datetime.datetime(2026, 7, 26, 12, 0, 0)

# Given to every template of the tables below; `u` stays undefined.
BASE = {
    "s": "abc", "l": [1, 2, 3], "n": None, "d": {"items": 5, "a": 1},
    "m": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": None}],
    "x5": "\u00e9\U0001f642", "big": "The quick\tbrown\n\nfox  jumps <over> \"the\" & lazy's dog",
    "j": "\u00e9\U0001f642<a>&'\"\n\x1b\x7f\u2028/\\\b\f\r\t",
    "o": [{"k": "b", "v": 2}, {"k": "A", "v": 1}, {"k": "a", "v": 3, "w": 1}],
    "words": ["b", "A", "a", "C", "\u00e4", "B"], "nums": [3, -1, 2.5, 0, 10],
    "call": {"name": "f", "arguments": {"city": "Z\u00fcrich", "days": 2, "deep": [True, None, 1.5, {"a": "b"}]}},
}

# One template a line; the sign \u23ce stands for a newline, \u2424 for CR LF.
UNDEFINED = r"""
[{{ u }}]
{{ [u, n, true] }}
{{ u ~ 'a' }}
{{ u|default('D') }} {{ n|default('D') }} {{ n|default('D', true) }}
{{ ''|default('D') }}|
{{ u == none }} {{ u is none }} {{ u == '' }} {{ u == false }} {{ u == u2 }} {{ u != 'x' }}
{{ u.x }}
{{ u[0] }}
{{ u[1:] }}
{{ u() }}
{{ u + 'a' }}
{{ 'a' + u }}
{{ u < 1 }}
{{ -u }}
{{ u in 'abc' }}
{{ 'a' in u }} {{ u in [1] }}
{{ u.y|default('D') }}
{{ u.x is defined }}
{{ d.q.y is defined }}
{{ d.q|default('D') }}
{{ u and u.x }}|
{{ u|length }} {{ u|count }} {{ u|sum }}
{{ u|list }} {{ u|sort }}
[{{ u|string }}{{ u|trim }}{{ u|upper }}{{ u|lower }}{{ u|title }}{{ u|capitalize }}{{ u|safe }}{{ u|e }}{{ u|join }}{{ u|first }}{{ u|last }}]
[{{ u|replace('a', 'b') }}]
{{ u|items|list }} {{ u|map('upper')|list }} {{ u|select|list }} {{ u|selectattr('a')|list }} {{ u|unique|list }} {{ u|reverse|list }}
{{ u|int }}
{{ u|float }}
{{ u|indent }}
{{ u|dictsort }}
{{ u|tojson }}
{{ [u]|tojson }}
{{ u|abs }}
{{ u|round }}
{% for i in u %}x{% else %}E{% endfor %}
{{ u is iterable }} {{ u is sequence }} {{ u is mapping }} {{ u is string }} {{ u is true }} {{ u is false }}
[{{ 'a' if false }}]
{{ 'x' + ('a' if false) }}
{{ 'x' ~ ('a' if false) }}
{{ l[9] }}{{ s[9] }}{{ l['x'] }}{{ s.foo }}{{ l.length }}{{ [][-1] }}|
{{ l[9].x }}
{{ d.a.b }}|
{{ u.__class__ }}|{{ u is callable }}
{{ n }} {{ n ~ 'a' }} {{ n|trim }} {{ n|upper }} {{ n|string }} {{ n|tojson }}
{{ n.x }}|{{ n['x'] }}|{{ n[0] }}|
{{ n[1:] }}
{{ n.x.y }}
{{ n.split('a') }}
{{ n|length }}
{{ n|list }}
{{ n|items|list }}
{{ 'a' in n }}
{{ 'a' + n }}
{% for x in n %}{% endfor %}
{{ n < 1 }}
{{ n|int }} {{ n|float }} {{ n is iterable }}
{{ [n, 1]|join('-') }}
{{ {'a': none}.get('a', 'x') }}
"""

VALUES = r"""
{{ 1.0 }} {{ 1e15 }} {{ 1e16 }} {{ 0.0001 }} {{ 1e-5 }} {{ 0.1+0.2 }} {{ 1/3 }}
{{ 4/2 }} {{ 7//2 }} {{ -7//2 }} {{ -7%3 }} {{ 7.5//2 }} {{ 2**-1 }}
{{ -2**2 }} {{ 2**3**2 }} {{ -1|abs }} {{ 2 * 3 ~ 4 }} {{ 5 % 3 ~ 1 }}
{{ 1/0 }}
{{ 1//0 }}
{{ 1%0 }}
{{ 1 + '1' }}
{{ '1' + 1 }}
{{ 'a' + 1 ~ 2 + 3 }}
{{ 'x' + none ~ 'y' }}
{{ true+1 }} {{ 1 == true }} {{ 1 == 1.0 }} {{ 1 == '1' }} {{ 'a'*3 }}
{{ '3.7'|int }} {{ '1e3'|int }} {{ '0x1f'|int }} {{ ' 12 '|int }} {{ 'x'|int(7) }} {{ 3.99|int }} {{ '0x1f'|int(base=16) }} {{ '1_0'|int }}
{{ 2.5|round }} {{ 3.5|round }} {{ 5|round }} {{ 2.675|round(2) }} {{ 1234.5|round(-2) }} {{ 1.2|round(0, 'ceil') }} {{ 15|round(-1) }}
{{ 100000000000000000000 }} {{ 9223372036854775807 + 1 }} {{ 2**100 }} {{ -2**63 - 1 }} {{ 2**64 // 3 }} {{ (2**70) % 1000 }} {{ 10**20 == 1e20 }}
{{ 1_000 }} {{ 0x1f }} {{ 0b101 }} {{ 0o17 }} {{ 1_0.5 }} {{ 1e+3 }} {{ 0.0 }} {{ -0.0 }} {{ 7.0 * 3 }} {{ 1e308 * 10 }}
{{ {'a': "it's", 'b': 'x"y', 'c': none, 'd': true, 'e': 1.0, 'f': [1, 'é'], 'h': "'\""} }}
{{ ['\n\t\\\r', '\x1b\x7f\xa0\xad', '\u200b\u3000\ue000', '🙂ß'] }}
{{ (1,) }} {{ () }} {{ 1, 'a' }} {{ [[], {}, ()] }}
{{ {'a':1}.items() }} {{ {'a':1}.keys() }} {{ {'a':1}.values() }} {{ range(3) }} {{ range(1, 5, 2) }} {{ namespace(a=1) }}
{{ ['x'|safe] }} {{ l|map('string')|list }}
{{ '' or 0 or 'x' }} {{ 1 and 'y' }} {{ 0 and 1 }} {{ [] or {} }}
{% for v in ['', 0, 0.0, [], {}, (), none, range(0), ' ', '0', 'false', l|select('mapping'), namespace()] %}{{ 'T' if v else 'F' }}{% endfor %}
{{ 1 < 2 < 3 }} {{ 3 > 2 > 2 }} {{ 1 in [1] == true }} {{ (1 in [1]) == true }} {{ 1 < 2 == true }}
{{ [1] == (1,) }} {{ {'a':1,'b':2} == {'b':2,'a':1} }} {{ 'a' < 'B' }} {{ 'é' > 'z' }} {{ '' in 'abc' }} {{ none in [none] }}
{{ [1, 2] < [1, 3] }} {{ (1, 'a') < (1, 'b') }} {{ [1] < [1, 0] }} {{ 1.5 > 1 }} {{ true < 2 }}
{{ 1 in 'abc' }}
{{ 1 < 'a' }}
{{ {} < {} }}
{{ 1 is true }} {{ 0 is false }} {{ '' is false }}
{{ 1 is defined is true }}
{{ d.a }} {{ d['items'] }} {{ d.items is callable }} {{ {'a':1}['items'] is defined }} {{ 'items' in {'a':1} }} {{ s['upper']() }} {{ l.1 }} {{ s[-1] }} {{ l[-9:2] }} {{ l[5:] }} {{ s[::-1] }}
{% for k in d.items %}{% endfor %}
{{ d.items()[0] }}|
{{ d[1:] }}
{{ {1:'x'}['1'] }}|{{ {1:'x'}[1] }} {{ {1:'x', true: 'y'} }}
{{ d|attr('a') }}|{{ d|attr('keys') is callable }}
{{ d|first }} {{ d|list }} {{ d|length }} {% for k in d %}{{ k }}{% endfor %}
{{ [[1, 2], [3]][0][1] }} {{ l[true] }} {{ l[1.0] }}| {{ d[l] }}|
{{ l.append(4) }}
{{ l.append is defined }}{{ l.append }}
{{ l.insert(0, 1) }}
{{ l.extend([1]) }}
{{ l.sort() }}
{{ l.reverse() }}
{{ l.remove(1) }}
{{ l.pop() }}
{{ l.clear() }}
{{ d.update({}) }}
{{ d.pop('a') }}
{{ d.popitem() }}
{{ d.clear() }}
{{ d.setdefault('q', 1) }}
{{ s.__len__() }}
{{ d.__class__ }}|{{ d._x }}|
{{ range(100001) }}
{{ l.index(2) }} {{ l.count(1) }} {{ l.copy() }} {{ d.copy() }} {{ '{}'.format(1) }}
{{ l.index(9) }}
{{ [1] + (2,) }}
{{ {} + {} }}
{{ [1] + [2] }} {{ (1,) + (2,) }} {{ [0] * 3 }}
{{ '<a>' + ('b'|safe) }}
{{ ('b'|safe) + '<"&' }} {{ ('b'|safe) + "'>" }}
{{ ('<'|safe) + ('>'|safe) }}
{{ '<a>' ~ ('b'|safe) }}
{{ ('<%s>'|safe) % '<' }} {{ ('<{}>'|safe).format('<') }} {{ '<%s>' % ('<'|safe) }}
{{ ('<a>'|safe|string + '<') }} {{ ('<a>'|safe|trim + '<') }} {{ ('<a>'|safe|upper + '<') }} {{ ('<a> b'|safe).split()[0] + '<' }} {{ ('<a>'|safe)[1:] + '<' }}
{{ ([('<a>'|safe)]|join + '<') }} {{ ('<a>'|safe|replace('a', 'b') + '<') }} {{ ('<a>'|safe|tojson + '<') }}
{% macro f() %}<b>{% endmacro %}{{ f() + '<' }}{% set x %}<c>{% endset %}{{ x + '<' }}
{{ '<&>'|e }} {{ '<&>'|e|e }} {{ '<&>'|e|forceescape }} {{ '<b>a</b> &amp; c'|striptags }}
"""

WHITESPACE = r"""
a⏎
a⏎⏎
{% if 1 %}⏎⏎x{% endif %}
{% if 1 %} ⏎x{% endif %}
x⏎  {% if 1 %}y{% endif %}⏎z
x  {% if 1 %}y{% endif %}
{% if 1 %}  {% endif %}|
  {{ 1 }}⏎  x
{{ 1 }}⏎⏎{{ 2 }}
{{ 1 -}}⏎{{ 2 }}
a ⏎ {%- if 1 -%} ⏎ b ⏎ {%- endif -%} ⏎ c
  {%+ if 1 %}x{% endif %}
{% if 1 +%}⏎x{% endif %}
a {# c #}⏎b
{{ 1 }}{# c #}⏎2
{# c #}⏎⏎x
a⏎{#- c #}⏎b
a⏎{#- c -#}⏎b{#+ d +#}⏎c
a⏎{% if 1 %}{% endif %}⏎{% if 1 %}{% endif %}⏎b
{% for i in [1,2] %}⏎  {{ i }}⏎{% endfor %}⏎z
{% raw %}⏎{{ x }}⏎{% endraw %}⏎y
  {% raw -%}  {% y  {%- endraw +%}⏎y
{%- raw %} a {% endraw -%} ⏎ b
a {% if 1 %}b{% endif %}　{%- if 1 %}c{% endif %}
a⏎ {% if 1 %}b{% endif %}⏎　{% if 1 %}c{% endif %}
a{{+ 1 +}}
{{ '⏎' }}|⏎{{ '␤' }}|
a␤{% if 1 %}␤b{% endif %}␤c␤
{{ '}}' }} {{ "%}" }} {{ {'a':{'b':1}}}}
{{ '\d' }} {{ '\x41\u00e9\101\n\'\"\\' }} {{ 'a' 'b' "c" }} {{ 'a\⏎b' }} {{ '\é' }}
{% set x = {'a': 1,⏎ 'b': [1,⏎2]} -%}⏎{{ x⏎ }}
{{ 1 }
{{ (1 }}
{{ ) }}
{% if 1 %}
{% endif %}
{# never closed
{% raw %} never closed
{{ 'never closed }}
{{ 1 $ 2 }}
{% unknown %}
{{ 1 2 }}
{{ }}
{% if %}{% endif %}
{% for in l %}{% endfor %}
{% set 1 = 2 %}
{% set true = 2 %}
{% set a.b.c = 2 %}
{{ f(a=1, 2) }}
{{ f(a=1, a=2) }}
{{ l[1:2, 3] }}
{% for x in l %}{% endif %}
{% for loop in l %}{% endfor %}{{ loop }}
{% for x in l %}{% set loop = 1 %}{% endfor %}
{% break %}
{% macro f() %}{% break %}{% endmacro %}
{% for x in l %}{% macro f() %}{% continue %}{% endmacro %}{% endfor %}
{% block a %}{% endblock %}{% block a %}{% endblock %}
{{ s|nofilter }}
{{ s is notest }}
{% if false %}{{ s|nofilter }}{% endif %}{{ 'a' if true else s|nofilter }}ok
{% if true %}{{ s|nofilter }}{% endif %}
{{ nofunction() if false }}ok
{{ nofunction() }}
{% include 'x' %}
{% if false %}{% include 'x' %}{% import 'y' as y %}{% from 'z' import a, b as c with context %}{% endif %}ok
{% extends 'x' %}
"""

STATEMENTS = r"""
{% set g = l|select('odd') %}{% for i in g %}{{ i }}{% endfor %}/{% for i in g %}{{ i }}{% endfor %}
{% set g = l|select('odd') %}{{ g|first }}{{ g|list }}
{% set g = l|map('string') %}{{ g[0] }}|{{ g is sequence }}|{{ 'T' if g }}
{{ l|select('odd')|length }}
{{ l|select('odd')|last }}
{{ l|map('string')|tojson }}
{{ 'abc'|reverse }} {{ l|reverse|list }} {{ d|reverse|list }}
{% set x=0 %}{% for i in l %}{{ x }}{% set x=i %}{% endfor %}/{{ x }}
{% set x=0 %}{% for i in l %}{% set x=x+i %}{{ x }}{% endfor %}/{{ x }}
{% for i in l %}{% if i==1 %}{% set y=i %}{% endif %}[{{ y }}]{% endfor %}
{% set i=9 %}{% for i in l %}{{ i }}{% endfor %}{{ i }}
{% if false %}{% set s='no' %}{% endif %}{{ s }}
{% if true %}{% set s='yes' %}{% endif %}{{ s }}
{% set s %}{{ s }}!{% endset %}{{ s }}
{{ s }}{% set s %}{{ s }}!{% endset %}{{ s }}
{% set d.a=2 %}
{% macro f() %}{{ x }}{% endmacro %}{% set x=1 %}{{ f() }}{% set x=2 %}{{ f() }}
{% macro f() %}[{{ i }}{{ loop is defined }}]{% endmacro %}{% for i in l[:1] %}{{ f() }}{% endfor %}
{{ f() }}{% macro f() %}{% endmacro %}
{% macro f(a,b='B') %}{{ a }}{{ b }}{% endmacro %}{{ f() }}|{{ f(1) }}|{{ f(b=2) }}|{{ f(u,u) }}|{{ f(1,none) }}
{% macro f(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}{{ f(1, 2) }}
{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}
{% macro f(a) %}{% endmacro %}{{ f(b=2) }}
{% macro f() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, a=3) }}
{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}
{% macro f() %} {% endmacro %}{{ 'T' if f() }}{{ f.name }}{{ f.arguments }}{{ f }}
{% macro f(x) %}<{{ caller(x) }}>{% endmacro %}{% call(y) f(3) %}{{ y }}!{% endcall %}
{% macro f() %}{{ caller() }}{% endmacro %}{{ f() }}
{% set ns = namespace(a=1) %}{% for i in l %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}{{ ns['a'] }}{{ ns.b }}|{% set ns.b = 'x' %}{{ ns.b }}
{% macro f(ns) %}{% set ns.a = 2 %}{% endmacro %}{% set q = namespace() %}{{ f(q) }}{{ q.a }}
{% for i in l if i != 2 %}{{ loop.index }}/{{ loop.length }}{{ loop.last }} {% endfor %}
{% for i in l if loop.index == 1 %}{% endfor %}
{% for i in l %}{{ loop.first }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.depth }}{{ loop.cycle('a', 'b') }}{{ loop.changed(i // 2) }} {% endfor %}
{% for i in m %}{{ loop.previtem.role }}{% endfor %}
{% for i in l %}{% break %}{% else %}E{% endfor %}
{% for i in l %}{% continue %}{% else %}E{% endfor %}
{% for i in l %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% else %}E{% endfor %}
{% for i in [] %}{% else %}E{% endfor %}
{% for a, b in [(1, 2), (3, 4)] %}{{ a }}{{ b }}{% endfor %}{% for a, b in [(1, 2, 3)] %}{% endfor %}
{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for c in x5 %}[{{ c }}]{% endfor %}
{% for i in l recursive %}{{ i }}{% if i < 3 %}({{ loop([i + 1]) }}{{ loop.depth }}){% endif %}{% endfor %}
{% for i in l %}{% for j in l %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}
{% for i in l %}{% for j in loop %}{{ j[0] }}{% endfor %}{% endfor %}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set a, b = b, a %}{{ a }}{{ b }}
{% set x | upper %}a{{ s }}{% endset %}{{ x }}
{% with a = 1, b = s %}{{ a }}{{ b }}{% set a = 5 %}{{ a }}{% endwith %}[{{ a }}]
{% set a = 1 %}{% with a = 2, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}
{% filter upper %}a{% set q = 1 %}{{ s }}{% endfilter %}[{{ q }}]
{% filter replace('a', 'b')|indent(2) %}a⏎a{% endfilter %}
{% filter length %}abc{% endfilter %}
{% generation %}a{% set q = 1 %}{{ q }}{% endgeneration %}[{{ q }}]
{% print 1, 'a' %}
{% autoescape false %}<{{ '<' }}{% endautoescape %}
{% set x = 1 %}{% block a %}[{{ x }}{{ s }}]{% endblock %}{% for i in l %}{% block b scoped %}{{ i }}{% endblock %}{% endfor %}
{% if 0 %}a{% elif n %}b{% elif l %}c{% else %}d{% endif %}
{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{% set j = joiner('|') %}{{ j() }}x{{ j() }}y{{ j() }}
{{ dict(a=1, **{'b': 2}) }} {{ dict([('a', 1)]) }} {{ '{} {}'.format(*l[:2]) }}
{{ raise_exception('no') }}
{{ strftime_now('%Y-%m-%d %d %b %Y %B %d, %Y %H:%M:%S %A %j %p %y %%') }}
{{ [1, 2, 3][1:][0] }} {{ l[1:2] }} {{ l[:-1] }} {{ l[::2] }} {{ l[::-2] }} {{ s[1:] }} {{ x5[::-1] }} {{ range(10)[2:8:3]|list }} {{ l[5:0:-1] }}
{{ 'a' in s }} {{ 'a' not in s }} {{ 2 in l }} {{ 'a' in d }} {{ 3 in range(5) }} {{ not 'a' is string }} {{ 'A' if 'a' in ('a', 'b') else 'B' }}
{{ s|trim + ' ' }}|{{ s|upper if true else s|lower }}|{{ -1|abs }}|{{ not s is defined }}|{{ s is string and l is sequence or n }}
{% for i in l %}{% set x %}{{ i }}{% if i == 2 %}{% break %}{% endif %}{% endset %}{{ x }}{% endfor %}
{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ s }}{% endmacro %}{{ a() }}
"""

FILTERS = r"""
{{ x5|length }} {{ x5[0] }} {{ x5[1:] }} {{ x5|reverse }} {{ x5|first }}{{ x5|last }}
{{ 'straße'|upper }} {{ 'İ'|lower|length }} {{ 'ΑΣ'|lower }} {{ 'ǆ'|title }} {{ 'ﬁ'|capitalize }}
[{{ '  a 　'|trim }}] [{{ '\u200ba\x1c'|trim }}] [{{ 'xxaxyx'.strip('xy') }}] [{{ 'abca'|trim('a') }}]
{{ ' a  b'.split(' ') }} {{ ' a  b'.split() }} {{ ''.split('x') }} {{ ''.split() }} {{ 'a,b,c'.split(',', 1) }} {{ ' a b c '.split(none, 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ' a b c '.rsplit(none, 1) }}
{{ 'a'.split('') }}
{{ "they're BILL's"|title }} {{ "they're BILL's".title() }} {{ 'hELLO'|capitalize }} {{ 'aB'.swapcase() }} {{ 'ß'.casefold() }}
{{ 'a⏎b⏎⏎c'|indent(2) }}|{{ ''|indent(4, first=true) }}|{{ 'a⏎⏎b'|indent(2, true, true) }}|{{ 'a⏎b'|indent('>') }}
{{ 1|replace(1, 2) }} {{ [1]|join(2) }} {{ 'aaa'|replace('a', 'b', 2) }} {{ 'abc'|replace('', '-') }} {{ 'aXbX'.replace('X', '') }}
{{ 'a'.replace(1, 2) }}
{{ ','.join([1]) }}
{{ ','.join(['a', 'b']) }} {{ s.join('xyz') }}
{{ '%s' % d }} {{ '%.2f'|format(3.14159) }} {{ '%5d|%-5d|%05d|%+d|%x|%o|%e|%g|%c|%%|%r' % (1, 2, 3, 4, 255, 8, 1.5, 1e10, 'z', 'q') }} {{ '%(a)s' % d }}
{{ '%d' % 'a' }}
{{ '%s %s' % 'a' }}
{{ '%s' % (1, 2) }}
{{ '{:>5}|{:<5}|{:^5}|{:05d}|{:,}|{:.2f}|{:x}|{:%}|{!r}|{:e}'.format('a', 'b', 'c', 7, 1234567, 3.14159, 255, 0.5, 'q', 12345.678) }} {{ '{0}{1}{0}'.format('a', 'b') }} {{ '{a}{b[0]}{c.a}'.format(a=1, b=l, c=d) }} {{ '{{}}' .format() }}
{{ '{}'.format() }}
{{ s.upper() }} {{ s.startswith('a') }} {{ s.endswith(('x', 'c')) }} {{ s.find('c') }} {{ s.find('z') }} {{ s.index('b') }} {{ 'aXbX'.count('X') }} {{ 'a\nb\r\nc\x0bd'.splitlines() }} {{ 'pre-x'.removeprefix('pre-') }} {{ 'x-suf'.removesuffix('-suf') }} {{ '12'.isdigit() }} {{ 'a1'.isalnum() }} {{ ' '.isspace() }} {{ 'aB'.islower() }} {{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ '7'.zfill(3) }} {{ 'a'.center(5, '*') }} {{ 'a'.ljust(3) }}| {{ 'a'.rjust(3) }} {{ 'Ab Cd'.istitle() }} {{ 'a\tb'.expandtabs(4) }}
{{ s.index('z') }}
{{ d.get('a') }} {{ d.get('q') }} {{ d.get('q', 3) }} {{ d.keys()|list }} {{ d.values()|list }}
{{ j|tojson }}
{{ j|tojson(ensure_ascii=true) }}
{{ {'a':[],'b':{},'c':[1]}|tojson(indent=2) }}
{{ call|tojson }}
{{ call|tojson(indent=4) }}
{{ call|tojson(4) }} {{ call|tojson(separators=(',', ':')) }} {{ call|tojson(indent=1, separators=(',', ':')) }} {{ {'b': 1, 'a': 2}|tojson(sort_keys=true) }} {{ [1]|tojson(indent=0) }}
{{ {1: 1, none: 2, 1.5: 3, 'k': (1, 2)}|tojson }} {{ [1e16, 1e-5, -0.0, 1.0, true, none]|tojson }} {{ (1e308 * 10)|tojson }}
{{ range(3)|tojson }}
{{ d.items()|tojson }}
{{ {'b':1,'A':2,'a':3,'B':0}|dictsort }} {{ {'b':1,'A':2}|dictsort(true) }} {{ {'b':1,'A':2}|dictsort(by='value', reverse=true) }} {{ {10: 1, 9: 2}|dictsort }}
{{ {1: 1, 'a': 2}|dictsort }}
{{ words|sort }} {{ words|sort(reverse=true) }} {{ words|sort(case_sensitive=true) }} {{ words|unique|list }} {{ words|min }} {{ words|max }} {{ nums|sort }} {{ nums|min }} {{ nums|max }} {{ nums|sum }}
{{ o|sort(attribute='k')|map(attribute='k')|list }} {{ o|sort(attribute='v', reverse=true)|map(attribute='v')|list }} {{ o|sum(attribute='v') }} {{ o|max(attribute='v') }} {{ o|map(attribute='w')|list }} {{ o|map(attribute='w', default=0)|list }} {{ o|groupby('k') }} {% for g in o|groupby('k') %}{{ g.grouper }}{{ g.list|length }}{% endfor %}
{{ o|sort(attribute='w') }}
{{ [1, 'a']|sort }}
{{ o|selectattr('v', 'gt', 1)|list }} {{ o|selectattr('w', 'defined')|list }} {{ o|rejectattr('w')|list }} {{ o|selectattr('k', 'equalto', 'A')|list }} {{ l|select('==', 2)|list }} {{ l|reject('in', [1])|list }} {{ [0, 1]|select|list }} {{ [none, 1]|reject('none')|list }} {{ words|map('upper')|join(' ') }} {{ words|map('replace', 'a', 'x')|list }}
{{ l|batch(2)|list }} {{ l|batch(2, 'x')|list }} {{ l|slice(2)|list }} {{ l|slice(2, 'x')|list }}
{{ '3.5'|float }} {{ 'x'|float }} {{ 'x'|float(1.5) }} {{ ' 1e3 '|float }} {{ true|int }} {{ -3|abs }} {{ -2.5|abs }} {{ 12345|filesizeformat }} {{ 12345|filesizeformat(true) }}
{{ big|wordcount }} {{ big|truncate(15) }} {{ big|truncate(15, true) }} {{ big|truncate(15, false, '!', 0) }} {{ 'a b&c/d'|urlencode }} {{ {'a': 1, 'b c': '/'}|urlencode }} {{ {'a': 1, 'b': none}|xmlattr }} {{ 'ab'|center(6) }}| {{ [3, 'a', none]|pprint }}
{{ 3 is odd }} {{ 4 is even }} {{ 6 is divisibleby 3 }} {{ 6 is divisibleby(4) }} {{ 1 is eq 1 }} {{ 1 is ne 1 }} {{ 1 is lt 2 }} {{ 2 is gt 1 }} {{ 1 is ge 1 }} {{ 1 is le 0 }} {{ 1 is in [1] }} {{ 'a' is lower }} {{ 'A' is upper }} {{ 1 is equalto 1.0 }} {{ none is sameas none }} {{ 'upper' is filter }} {{ 'odd' is test }} {{ ('a'|safe) is escaped }} {{ range is callable }}
{{ true is number }} {{ true is integer }} {{ 1.0 is integer }} {{ 1 is float }} {{ true is boolean }} {{ 1 is boolean }} {{ 1.5 is number }} {{ 2**70 is integer }}
{{ s is iterable }}{{ s is sequence }}{{ s is mapping }} {{ d is iterable }}{{ d is sequence }}{{ d is mapping }} {{ range(2) is sequence }}{{ d.items() is sequence }}{{ l|map('int') is sequence }}{{ namespace() is sequence }}{{ 1 is iterable }}
{{ 'é' is string }} {{ l is string }} {{ none is none }} {{ u is undefined }} {{ s is not none }} {{ s is defined and s is not mapping }}
{{ range(2, 8, 3)|list }} {{ range(5, 0, -2)|list }} {{ range(0)|list }} {{ range(3)|last }} {{ range(5)|sum }}
{{ range(1, 5, 0) }}
"""

CHATS = [
    {"messages": [{"role": "system", "content": " Be brief.\n"}, {"role": "user", "content": "Hi <|im_end|> {{ x }}"}], "add_generation_prompt": True},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "one, "}, {"type": "image"}, {"type": "text", "text": "two"}]}], "add_generation_prompt": False},
    {"messages": [{"role": "user", "content": "Weather?"},
                  {"role": "assistant", "content": None, "reasoning_content": "look it up", "tool_calls": [
                      {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Z\u00fcrich", "days": 2, "raw": {"a": [1, None]}}}}]},
                  {"role": "tool", "tool_call_id": "c1", "content": "{\"t\": 21.5}"}, {"role": "tool", "content": "b"}],
     "tools": [{"type": "function", "function": {"name": "get_weather", "description": "Weather of a \"place\".",
                                                 "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}],
     "add_generation_prompt": True, "enable_thinking": False},
    {"messages": [], "add_generation_prompt": True},
    {"messages": [{"role": "assistant", "content": "<think>\nold\n</think>\n\nanswer"}, {"role": "user", "content": "next"}, {"role": "alien", "content": "?"}]},
]

# Small templates of our own in the manner of real ones.
TEMPLATES = [
    # ChatML with tools and think blocks
    """{%- macro body(c) %}
    {%- if c is string %}{{ c | trim }}
    {%- elif c is iterable and c is not mapping %}
        {%- for p in c %}{{ p.text if p.type == 'text' else '<' ~ p['type'] ~ '>' }}{% endfor %}
    {%- endif %}
{%- endmacro %}
{%- set ns = namespace(last=-1, tools=false) %}
{%- for m in messages[::-1] %}
    {%- if ns.last < 0 and m.role == 'user' %}{% set ns.last = messages|length - loop.index %}{% endif %}
{%- endfor %}
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- for t in tools %}{{ t | tojson }}{{ '\\n' if not loop.last }}{% endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {%- if loop.first or loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
        {{- '\\n<tool_response>\\n' + body(message.content) + '\\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
    {%- elif message.role in ['user', 'system', 'assistant'] %}
        {{- '<|im_start|>' + message['role'] + '\\n' }}
        {%- set text = body(message.content) %}
        {%- if '</think>' in text %}{% set text = text.split('</think>')[-1].lstrip('\\n') %}{% endif %}
        {%- if message.reasoning_content and loop.index0 > ns.last %}{{ '<think>\\n' ~ message.reasoning_content ~ '\\n</think>\\n\\n' }}{% endif %}
        {{- text }}
        {%- for call in message.tool_calls or [] %}
            {{- '<tool_call>\\n<function=' + call.function.name + '>\\n' }}
            {%- for k, v in call.function.arguments | items %}
                {{- '<parameter=' ~ k ~ '>\\n' ~ (v | tojson | safe if v is mapping or v is sequence and v is not string else v | string) ~ '\\n</parameter>\\n' }}
            {%- endfor %}
            {{- '</function>\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- raise_exception('Unexpected role: ' ~ message.role) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% else %}{{ '<think>\\n' }}{% endif %}
{%- endif %}
""",
    # bos, alternation check, system text in front of the first user turn
    """{{ bos_token }}
{%- if messages and messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- for message in loop_messages | rejectattr('role', 'equalto', 'tool') | list %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception("After the optional system message, conversation roles must alternate") }}
    {%- endif %}
    {%- if message.role == 'user' %}
        {{- '[INST] ' + (system + '\\n\\n' if system is defined and loop.last else '') }}
        {%- if message.content is string %}{{ message.content }}{% else %}{{ message.content | selectattr('type', 'equalto', 'text') | map(attribute='text') | join('') }}{% endif %}
        {{- ' [/INST]' }}
    {%- elif message.tool_calls is defined %}
        {{- '[TOOL_CALLS] [' }}
        {%- for call in message.tool_calls %}
            {%- set out = call.function | tojson %}
            {{- out[:-1] }}, "id": "{{ call.id }}"}{{ ', ' if not loop.last else ']' ~ eos_token }}
        {%- endfor %}
    {%- else %}
        {{- ' ' + message.content + eos_token }}
    {%- endif %}
{%- endfor %}""",
    # recursive macro over a schema, dictsort, dates
    """{%- macro show(v, depth=0) -%}
{%- if v is mapping -%}{
{%- for k, x in v | dictsort -%}{{ k }}:{{ show(x, depth=depth + 1) }}{{ ',' if not loop.last }}{%- endfor -%}}
{%- elif v is string -%}"{{ v | upper if depth > 1 else v }}"
{%- elif v is boolean -%}{{ 'true' if v else 'false' }}
{%- elif v is none -%}null
{%- elif v is iterable -%}[{%- for x in v -%}{{ show(x, depth + 1) }}{{ ',' if not loop.last }}{%- endfor -%}]
{%- else -%}{{ v }}{%- endif -%}
{%- endmacro -%}
Today: {{ strftime_now('%d %b %Y') }}
{% for t in tools | default([]) -%}
{{ show(t.function) }}
{% endfor -%}
{% for m in messages -%}
{{ m.role | title }}: {{ m | tojson(indent=2) | indent(4) }}
{% else -%}
nobody
{% endfor -%}
{{ {'a': messages | map(attribute='role') | unique | list} }}""",
]


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_show"), [], [], body).set_lineno(line)

    def _show(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


def main():
    env = environment()
    sets = {"base": BASE}
    for i, chat in enumerate(CHATS):
        sets["chat%d" % i] = dict(chat, bos_token="<s>", eos_token="</s>")
    jobs = []
    for table in (UNDEFINED, VALUES, WHITESPACE, STATEMENTS, FILTERS):
        for line in table.strip("\n").split("\n"):
            jobs.append((line.replace("\u23ce", "\n").replace("\u2424", "\r\n"), "base"))
    for t in TEMPLATES:
        jobs += [(t, "chat%d" % i) for i in range(len(CHATS))]
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "vectors", "jinja.jsonl")
    with open(path, "w", encoding="utf-8", newline="\n") as f:
        f.write(json.dumps({"jinja2": jinja2.__version__, "now": "2026-07-26T12:00:00", "sets": sets}, ensure_ascii=False) + "\n")
        for t, v in jobs:
            case = {"t": t, "v": v}
            try:
                case["text"] = env.from_string(t).render(**sets[v])
            except Exception:
                case["error"] = True
            f.write(json.dumps(case, ensure_ascii=False) + "\n")
    print(len(jobs), "cases in", os.path.normpath(path))


if __name__ == "__main__":
    main()
