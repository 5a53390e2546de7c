# SPDX-License-Identifier: Apache-2.0
"""Synthetic tools without end: names, schemas and requests composed from word lists, so that a schema has to be read.

A Tool has a schema and makes calls of itself (arguments, request, result, answer). Parameters come from SLOTS (what a value looks like, how it
is named, how a request mentions it), tools from three sources: TOOL_TABLE (written by hand), composed actions (verb, noun, slots) and look-ups
(attribute of something). Whatever stands in a HELD list, or after a "/" in the names of a slot, appears in evaluation only.
"""

import json

from tasks import CATEGORY, CITY, COLOR, CAPITAL, DAY, FIRST, ITEM, LAST, MONTH, PLACE, ADJ, digits, filler, joined, pick

# ---------------------------------------------------------------------------------------------------------------- values

ONSET = "b c d f g h j k l m n p r s t v w z br cr dr fl gr kl pl st tr sh ch th".split()
VOWEL = "a e i o u a e i o ai ea ou".split()
CODA = ["", "", "", "n", "r", "l", "s", "k", "m", "x", "nd", "rt"]
STOP = set(
    "the a an and or of to in on at is are was were be it that this for with as by from i you we they he she his her its my your our not but if so".split()
)
HEX = "0123456789abcdef"
UPPER = "ABCDEFGHJKLMNPQRSTUVWXYZ"
TLD = "com org net io dev co.uk de fr info app".split()
EXT = "txt md pdf csv json py c png jpg docx xlsx log html yaml xml zip tar.gz sql mp3 mp4 toml rs go js".split()
DIRS = "src docs data home user tmp var etc opt projects reports images backup config build tests archive notes music shared".split()
CONDITION = "sunny cloudy rainy windy snowy foggy stormy clear".split()
TOPICS = (
    "climate change|electric cars|machine learning|ancient Rome|healthy breakfast|remote work|black holes|coffee beans|jazz history|stock markets|"
    "wireless headphones|mountain bikes|solar panels|tax rules|flu symptoms|garden design|chess openings|running shoes|space telescopes|bread baking"
).split("|")
SPEECH = "French German Spanish Italian Japanese Polish Korean Arabic Hindi Dutch Swedish Greek Turkish Czech Finnish Danish Portuguese".split()
MONEY = "USD EUR GBP JPY CHF CAD AUD SEK NOK INR CNY BRL MXN PLN".split()
FOOD = "rice pasta chicken salmon tofu beans lentils spinach mushrooms cheese eggs potatoes carrots garlic basil ginger almonds yogurt".split()
ROOM = "kitchen bedroom hallway office bathroom garage cellar attic balcony nursery".split()
COMMAND = (
    "ls -la {w}",
    "cat {w}.txt",
    "git status",
    "make {w}",
    "python {w}.py --fast",
    "grep -n {w} notes.txt",
    "wc -l {w}.c",
    "df -h",
    "npm run {w}",
)
SQL = (
    "SELECT * FROM {w}",
    "SELECT name FROM {w} WHERE id = {n}",
    "DELETE FROM {w} WHERE age > {n}",
    "SELECT COUNT(*) FROM {w}",
    "UPDATE {w} SET size = {n}",
)
CODE = (
    "{w} = {n}",
    "{w}({v})",
    "return {w}",
    "int {w} = {n};",
    "if {w} > {n}:",
    "import {w}",
    "print({w})",
    "for {v} in {w}:",
    "const {w} = {v}({n});",
    "def {w}({v}):",
    "#include <{w}.h>",
    "{w}: {n}",
    "{w} += {v} * {n}",
    "# {w} {v}",
    "assert {w} == {n}",
)
EXPRESSION = ("{a} + {b}", "{a} * {b}", "({a} - {b}) / {c}", "{a} ** 2", "sqrt({a})", "{a} * {b} + {c}", "{a} / {b}", "2 * ({a} + {b})")


def pseudo(r, n=None):
    return "".join(pick(r, ONSET) + pick(r, VOWEL) + pick(r, CODA) for _ in range(n or r.randint(2, 3)))


def code(r):
    """An identifier: digits, letters and digits, with or without marks between them, hexadecimal, or a UUID."""
    h = lambda n: "".join(pick(r, HEX) for _ in range(n))  # noqa: E731
    u = lambda n: "".join(pick(r, UPPER) for _ in range(n))  # noqa: E731
    k = r.randrange(10)
    if k < 2:
        return str(r.randrange(1, 10)) + digits(r, r.randint(2, 7))
    if k < 4:
        return f"{u(r.randint(1, 4))}-{digits(r, r.randint(2, 5))}"
    if k == 4:
        return f"{u(3)}-{r.randint(2020, 2031)}-{digits(r, 4)}"
    if k == 5:
        return u(r.randint(1, 3)) + digits(r, r.randint(2, 5))
    if k == 6:
        return f"{pick(r, 'ord usr cus tx doc job inv acc req'.split())}_{h(r.randint(4, 8))}"
    if k == 7:
        return h(r.randint(6, 10))
    if k == 8:
        return "".join(pick(r, UPPER + "0123456789") for _ in range(r.randint(5, 8)))
    return f"{h(8)}-{h(4)}-{h(4)}-{h(4)}-{h(12)}" if r.random() < 0.4 else f"{pseudo(r)}-{digits(r, 3)}"


def number(r, low, high):
    return r.randint(low, high)


def decimal(r, high):
    return round(r.uniform(0.1, high), r.choice((1, 1, 2)))


def natural_date(r):
    k = r.random()
    if k < 0.4:
        return f"{pick(r, MONTH)} {r.randint(1, 28)}"
    if k < 0.55:
        return f"{pick(r, MONTH)} {r.randint(1, 28)}, {r.randint(2024, 2031)}"
    if k < 0.65:
        return f"{r.randint(1, 28)} {pick(r, MONTH)}"
    return pick(r, ("tomorrow", "today", "next week", f"next {pick(r, DAY)}", pick(r, DAY), f"this {pick(r, DAY)}"))


def iso_date(r):
    return f"{r.randint(2019, 2034)}-{r.randint(1, 12):02d}-{r.randint(1, 28):02d}"


def clock(r):
    return f"{r.randint(0, 23):02d}:{r.choice((0, 5, 10, 15, 20, 30, 40, 45, 50)):02d}"


def snippet(g):
    """One line of program text."""
    r = g.r
    return pick(r, CODE).format(w=pick(r, (pseudo(r), g.word(), f"{g.word()}_{pseudo(r, 1)}")), v=pseudo(r), n=r.randint(0, 99))


def identifier(s):
    return "".join(c if c.isalnum() else "_" for c in s).strip("_") or "value"


class Gen:
    """A source of values: the random generator, sentences of running text (or None), and whether held-out names are used."""

    def __init__(self, r, prose=None, held=False):
        self.r, self.prose, self.held = r, prose, held

    def sentence(self):
        return pick(self.r, self.prose) if self.prose and self.r.random() < 0.7 else filler(self.r)

    def words(self, low, high):
        """Some words of running text that follow one another."""
        for _ in range(8):
            w = [x.strip("\"'()*:;,.!?") for x in self.sentence().split()]
            n = self.r.randint(low, high)
            if len(w) >= n:
                a = self.r.randrange(len(w) - n + 1)
                s = " ".join(w[a : a + n])
                if (
                    all(w[a : a + n])
                    and not {w[a].lower(), w[a + n - 1].lower()} & STOP
                    and s.replace(" ", "").replace("-", "").replace("'", "").isalnum()
                ):
                    return s
        return " ".join(pick(self.r, PLACE) for _ in range(low))

    def word(self):
        return pick(self.r, PLACE + ITEM) if self.r.random() < 0.3 else self.words(1, 1).lower()

    def title(self):
        k = self.r.random()
        if k < 0.4:
            return self.words(1, 4)
        if k < 0.7:
            return self.words(1, 4).title()
        return f"{pick(self.r, ADJ).capitalize()} {pick(self.r, PLACE).capitalize()}"

    def person(self):
        r = self.r
        first = pick(r, FIRST) if r.random() < 0.7 else pseudo(r, 2).capitalize()
        return first if r.random() < 0.15 else f"{first} {pick(r, LAST) if r.random() < 0.6 else pseudo(r, 2).capitalize()}"

    def city(self):
        r = self.r
        k = r.random()
        if k < 0.6:
            return pick(r, CITY)
        s = pseudo(r).capitalize()
        return s if k < 0.85 else f"{pick(r, ('New', 'San', 'Port', 'Saint', 'West', 'Bad', 'Lake'))} {s}"

    def thing(self):
        r = self.r
        return pick(r, (pick(r, ITEM), f"{pick(r, ADJ)} {pick(r, ITEM)}", f"{pick(r, COLOR)} {pick(r, ITEM)}", self.words(1, 2).lower()))

    def handle(self):
        r = self.r
        return pick(r, ("{p}{n}", "{p}_{n}", "{f}.{p}", "{f}_{p}", "{p}", "{f}{n}")).format(p=pseudo(r), f=pick(r, FIRST).lower(), n=r.randint(1, 99))

    def email(self):
        r = self.r
        domain = pick(r, ("example", "mail", "post", pseudo(r), pseudo(r)))
        return f"{pick(r, (self.handle(), pick(r, FIRST).lower() + '.' + pick(r, LAST).lower()))}@{domain}.{pick(r, TLD)}"

    def file(self):
        r = self.r
        stem = pick(
            r, (self.word(), pseudo(r), f"{self.word()}_{r.randint(1, 99)}", f"{self.word()}-{self.word()}", f"{pick(r, PLACE)}_{iso_date(r)}")
        )
        return f"{stem}.{pick(r, EXT)}"

    def folder(self):
        r = self.r
        parts = [pick(r, DIRS + [pseudo(r)]) for _ in range(r.randint(1, 3))]
        return pick(r, ("/", "", "./", "/", "~/")) + "/".join(parts)

    def url(self):
        r = self.r
        tail = pick(r, ("", f"/{self.word()}", f"/{self.word()}/{r.randint(1, 999)}", f"/{pseudo(r)}.html", f"?id={r.randint(1, 999)}"))
        return f"https://{pick(r, ('www.', '', 'api.'))}{pick(r, ('example', pseudo(r)))}.{pick(r, TLD)}{tail}"

    def company(self):
        return f"{pick(self.r, LAST + [pseudo(self.r).capitalize()])} {pick(self.r, ('Ltd', 'Inc', 'Group', 'GmbH', 'Labs', 'and Sons'))}"


VALUES = {
    "city": Gen.city,
    "country": lambda g: pick(g.r, list(CAPITAL)),
    "person": Gen.person,
    "handle": Gen.handle,
    "email": Gen.email,
    "phone": lambda g: pick(g.r, ("+{a} {b} {c}", "{b}-{c}", "+{a}{b}{c}", "({b}) {c}")).format(
        a=g.r.randint(1, 99), b=g.r.randint(100, 999), c=g.r.randint(1000, 9999999)
    ),
    "url": Gen.url,
    "file": lambda g: g.file() if g.r.random() < 0.4 else f"{g.folder()}/{g.file()}",
    "folder": Gen.folder,
    "date": lambda g: iso_date(g.r) if g.r.random() < 0.5 else natural_date(g.r),
    "iso": lambda g: iso_date(g.r),
    "time": lambda g: clock(g.r) if g.r.random() < 0.8 else f"{g.r.randint(1, 12)} {pick(g.r, ('am', 'pm'))}",
    "datetime": lambda g: pick(g.r, ("{d}T{t}:00", "{d} {t}", "{d}T{t}:00Z")).format(d=iso_date(g.r), t=clock(g.r)),
    "weekday": lambda g: pick(g.r, DAY),
    "month": lambda g: pick(g.r, MONTH),
    "year": lambda g: number(g.r, 1900, 2035),
    "code": lambda g: code(g.r),
    "int_id": lambda g: number(g.r, 1, 10 ** g.r.randint(1, 6)),
    "title": Gen.title,
    "text": Gen.sentence,
    "query": lambda g: pick(g.r, (pick(g.r, TOPICS), g.words(1, 4).lower(), g.thing())),
    "thing": Gen.thing,
    "company": Gen.company,
    "project": lambda g: pick(g.r, (pseudo(g.r).capitalize(), g.title(), f"{pseudo(g.r)}-{g.word()}")),
    "branch": lambda g: pick(
        g.r, ("main", "develop", f"feature/{pseudo(g.r)}", f"fix-{g.r.randint(1, 999)}", f"release/{g.r.randint(1, 9)}.{g.r.randint(0, 9)}")
    ),
    "repo": lambda g: f"{pseudo(g.r)}/{pseudo(g.r)}{pick(g.r, ('', '-core', '.js', '_tools'))}",
    "version": lambda g: f"{pick(g.r, ('', 'v'))}{g.r.randint(0, 12)}.{g.r.randint(0, 30)}.{g.r.randint(0, 20)}",
    "host": lambda g: pick(
        g.r,
        (f"{pseudo(g.r)}-{digits(g.r, 2)}", f"{pseudo(g.r)}.{pseudo(g.r)}.{pick(g.r, TLD)}", ".".join(str(g.r.randint(1, 254)) for _ in range(4))),
    ),
    "port": lambda g: number(g.r, 20, 65535),
    "sql": lambda g: pick(g.r, SQL).format(w=g.word(), n=g.r.randint(1, 99)),
    "command": lambda g: pick(g.r, COMMAND).format(w=g.word()),
    "expression": lambda g: pick(g.r, EXPRESSION).format(a=g.r.randint(2, 999), b=g.r.randint(2, 99), c=g.r.randint(2, 9)),
    "regex": lambda g: pick(g.r, ("^{w}.*$", "[a-z]+_{w}", "\\d{{3}}-{w}", "{w}|{v}", "{w}\\s+{v}")).format(w=g.word(), v=pseudo(g.r)),
    "color": lambda g: pick(g.r, COLOR) if g.r.random() < 0.7 else "#" + "".join(pick(g.r, HEX) for _ in range(6)),
    "money": lambda g: pick(g.r, MONEY),
    "money2": lambda g: pick(g.r, MONEY),
    "amount": lambda g: g.r.choice((number(g.r, 1, 100), number(g.r, 1, 20000), decimal(g.r, 900))),
    "price": lambda g: number(g.r, 5, 3000),
    "count": lambda g: number(g.r, 1, g.r.choice((9, 20, 100))),
    "minutes": lambda g: number(g.r, 1, 180),
    "hours": lambda g: number(g.r, 1, 72),
    "days": lambda g: number(g.r, 1, 60),
    "percent": lambda g: number(g.r, 0, 100),
    "degrees": lambda g: g.r.choice((number(g.r, -20, 40), number(g.r, 5, 30), decimal(g.r, 40))),
    "weight": lambda g: g.r.choice((number(g.r, 1, 200), decimal(g.r, 150))),
    "length": lambda g: g.r.choice((number(g.r, 1, 3000), decimal(g.r, 300))),
    "lat": lambda g: round(g.r.uniform(-90, 90), g.r.randint(1, 4)),
    "lon": lambda g: round(g.r.uniform(-180, 180), g.r.randint(1, 4)),
    "language": lambda g: pick(g.r, SPEECH),
    "food": lambda g: pick(g.r, FOOD),
    "room": lambda g: pick(g.r, ROOM) if g.r.random() < 0.7 else f"room {g.r.randint(1, 400)}",
    "animal": lambda g: pick(g.r, CATEGORY["animals"]),
    "symbol": lambda g: "".join(pick(g.r, UPPER) for _ in range(g.r.randint(2, 5))),
    "airport": lambda g: "".join(pick(g.r, UPPER) for _ in range(3)),
    "flight": lambda g: "".join(pick(g.r, UPPER) for _ in range(2)) + digits(g.r, g.r.randint(2, 4)),
    "address": lambda g: (
        f"{g.r.randint(1, 300)} {pick(g.r, LAST + [pseudo(g.r).capitalize()])} {pick(g.r, ('Street', 'Road', 'Avenue', 'Lane', 'Square'))}"
    ),
    "zip": lambda g: (
        digits(g.r, 5) if g.r.random() < 0.7 else f"{pick(g.r, UPPER)}{digits(g.r, 1)} {digits(g.r, 1)}{pick(g.r, UPPER)}{pick(g.r, UPPER)}"
    ),
    "word": lambda g: g.word() if g.r.random() < 0.7 else pseudo(g.r),
    "condition": lambda g: pick(g.r, CONDITION),
    "num": lambda g: g.r.choice((number(g.r, 0, 20), number(g.r, -50, 999), number(g.r, 1, 99999), decimal(g.r, 100))),
    "small": lambda g: number(g.r, 1, 12),
    "rating": lambda g: number(g.r, 1, 5),
    "bool": lambda g: g.r.random() < 0.5,
    "drink": lambda g: pick(g.r, CATEGORY["drinks"]),
    "instrument": lambda g: pick(g.r, CATEGORY["musical instruments"]),
    "sport": lambda g: pick(g.r, CATEGORY["sports"]),
}

# key | type | names, after "/" those kept for evaluation | descriptions | values | phrases in running text
# types: s string, i integer, n number, b boolean, e string of an enum (values: the choices), S array of strings, I array of integers
SLOT_TABLE = """
city|s|city location town place destination city_name where/municipality metro_area|Name of the city;The city;City;Which city|city|in {v};for {v};near {v};around {v}
country|s|country nation country_name region/homeland|Name of the country;The country;Country|country|in {v};for {v}
origin|s|origin from from_city start departure source_city departure_city/setting_out_from|Where it starts;City of departure;Origin|city|from {v};starting from {v};leaving from {v}
target|s|to to_city arrival end target_city arrival_city/final_stop|Where it ends;City of arrival;Goal|city|to {v};going to {v}
person|s|person name customer contact full_name client employee user_name/attendee_name patron|Name of the person;Full name;Who it is for;The person|person|for {v};with {v};on behalf of {v}
owner|s|owner assignee author manager responsible created_by assigned_to/in_charge|Who is responsible;Name of the owner;Person in charge|person|owned by {v};assigned to {v};and assign it to {v}
handle|s|username user handle login account account_name screen_name/nickname|User name;Login name;The account|handle|for user {v};as {v};for the account {v}
email|s|email to recipient email_address address mail receiver/mailbox|Email address;Recipient address;Where to send it|email|to {v};for {v}
phone|s|phone phone_number number mobile tel contact_number/dial_number|Phone number;Number to call;Telephone number|phone|at {v};on {v};using the number {v}
url|s|url link website address page_url uri endpoint/web_location|URL;Link;Address of the page|url|at {v};from {v};for {v}
file|s|path file file_path filename file_name input_file document/source_document|Path of the file;The file;File name;Path|file|in {v};from {v};for {v}
folder|s|folder directory dir target_dir output_dir directory_path location/destination_folder|Path of the folder;Directory;Where the files are|folder|in {v};into {v};under {v}
date|s|date day when on_date start_date due_date/calendar_day|Date;The date;Day;When|date|on {v};for {v};dated {v}
iso|s|date start_date from_date due day/effective_on|Date (YYYY-MM-DD);ISO date;Date as YYYY-MM-DD|iso|on {v};by {v};for {v}
until|s|end_date until to_date end deadline/closing_day|Last day;End date;Until when|date|until {v};through {v};ending {v}
time|s|time at start_time hour start when/clock_time|Time;Start time, HH:MM;Time of day|time|at {v};for {v};starting at {v}
datetime|s|datetime timestamp start_at scheduled_for moment/instant|Date and time;ISO 8601 timestamp;When|datetime|at {v};on {v};for {v}
weekday|s|day weekday day_of_week on/which_day|Day of the week;Weekday|weekday|on {v};every {v};each {v}
month|s|month in_month period/calendar_month|Month;Name of the month|month|in {v};for {v}
year|i|year in_year season/calendar_year|Year;The year|year|in {v};for the year {v};of {v}
code|s|id code reference key number identifier ref serial order_number/tracking_token|Identifier;Reference number;Id;The code|code|{v};with the id {v};number {v};with reference {v}
int_id|i|id number item_id record_id uid index user_id/entry_no|Numeric id;Id;Number|int_id|{v};with id {v};number {v}
title|s|title name label subject heading headline/caption|Title;Name;What it is called|title|called "{v}";titled "{v}";named {v};with the title {v}
text|s|text message body content comment note description/remark_text|Text;Message;Content;What to write|text|saying "{v}";with the text "{v}";that says: {v};with this text: {v}
query|s|query q search keyword term search_term keywords topic/look_for|What to search for;Search terms;Query|query|for {v};about {v};matching "{v}"
thing|s|item product article object thing item_name product_name/merchandise|Name of the item;Product;Which item|thing|for a {v};with the {v};about the {v}
company|s|company organization vendor supplier business company_name/firm|Name of the company;Company;Supplier|company|for {v};from {v};at {v}
project|s|project project_name workspace group team/initiative|Name of the project;Project;Workspace|project|in project {v};for the project {v};in {v}
branch|s|branch branch_name ref base target_branch/git_line|Branch;Git branch|branch|on branch {v};from {v};on {v}
repo|s|repo repository repo_name full_name/code_base|Repository, owner/name;Repository|repo|in {v};for the repo {v};in repository {v}
version|s|version tag release version_number/edition_tag|Version;Release|version|version {v};at version {v};as {v}
host|s|host server hostname machine ip node/box_name|Host name or IP;Server;Machine|host|on {v};on host {v};to {v}
port|i|port port_number tcp_port/listen_on|Port;TCP port|port|on port {v};using port {v}
sql|s|query sql statement sql_query/db_statement|SQL query;Statement to run|sql|with {v};using the query {v};: {v}
command|s|command cmd shell_command line script/invocation|Command line;Shell command|command|with the command {v};running {v};: {v}
expression|s|expression formula expr equation calculation/math_text|Mathematical expression;Formula|expression|for {v};of {v};: {v}
regex|s|pattern regex expression match/filter_pattern|Regular expression;Pattern|regex|with the pattern {v};matching {v}
color|s|color colour shade paint tint/hue|Color;Colour name or hex code|color|in {v};colored {v};with the color {v}
money|s|currency currency_code from_currency unit/money_unit|Currency code;Currency|money|in {v}
amount|n|amount value sum total price cost/money_quantity|Amount;Amount of money;Value|amount|of {v};for {v};over {v}
budget|i|max_price budget limit price_limit max_cost upper_limit/spending_cap|Highest price;Budget;Price limit|price|for at most {v} dollars;under {v} dollars;with a budget of {v};for less than ${v}
floor|i|min_price minimum lower_limit from_price/price_floor|Lowest price;Minimum price|price|for at least {v} dollars;above {v} dollars;over ${v}
count|i|count quantity amount number how_many n/unit_count|How many;Quantity;Number of items|count|{v} times;with {v} pieces;with a quantity of {v};- {v} of them
limit|i|limit max_results top_k num_results page_size count/result_cap|Maximum number of results;How many results to return|count|and show {v} results;limited to {v} results;at most {v} results;top {v}
people|i|people guests party_size persons seats participants number_of_people/head_count|Number of people;Guests;How many people|small|for {v} people;for {v} guests;for {v}
nights|i|nights days duration_days length number_of_days/stay_length|Number of days;How many days|days|for {v} days;over {v} days;lasting {v} days
minutes|i|minutes duration duration_minutes length mins time_limit/span_minutes|Length in minutes;Duration in minutes;Minutes|minutes|for {v} minutes;lasting {v} minutes;of {v} minutes
hours|i|hours duration_hours num_hours period/span_hours|Number of hours;Duration in hours|hours|for {v} hours;lasting {v} hours
percent|i|percent percentage level volume brightness rate/share_percent|Percentage;Level from 0 to 100;Percent|percent|to {v} percent;at {v}%;to {v}%
degrees|n|temperature degrees target_temperature temp/heat_setting|Temperature;Degrees Celsius|degrees|to {v} degrees;at {v} degrees
weight|n|weight weight_kg kg mass load/heaviness|Weight in kilograms;Weight|weight|weighing {v} kg;of {v} kg;with {v} kilograms
length|n|length height width size distance depth/extent|Length in meters;Size;Distance in kilometers|length|of {v} meters;with a length of {v};measuring {v}
lat|n|latitude lat/north_coord|Latitude|lat|at latitude {v};with latitude {v}
lon|n|longitude lon lng/east_coord|Longitude|lon|longitude {v};at longitude {v}
language|s|language lang target_language to locale/tongue|Language;Target language|language|in {v};to {v};into {v}
food|s|ingredient food dish product main_ingredient/foodstuff|Ingredient;Food;Main ingredient|food|with {v};containing {v};of {v}
room|s|room area zone location place/chamber|Room;Which room;Area|room|in the {v};for the {v}
symbol|s|symbol ticker stock code/share_code|Ticker symbol;Stock symbol|symbol|for {v};of {v}
airport|s|airport airport_code iata from_airport/airfield|Airport code;IATA code|airport|from {v};at {v};for {v}
flight|s|flight flight_number flight_no/flight_ref|Flight number|flight|for flight {v};on {v};{v}
address|s|address street street_address delivery_address location/postal_location|Street address;Address;Where to deliver|address|to {v};at {v}
zip|s|zip zip_code postal_code postcode/mail_code|Postal code;ZIP code|zip|for the postal code {v};with ZIP {v}
word|s|word name key term tag variable keyword/lexeme|Word;Name;Key|word|{v};"{v}";named {v}
rating|i|rating stars score grade points/star_count|Rating from 1 to 5;Stars;Score|rating|with {v} stars;with a rating of {v};rated {v}
age|i|age years min_age/age_years|Age in years;Age|days|aged {v};who is {v} years old;of age {v}
animal|s|animal pet species kind/creature|Animal;Species|animal|for a {v};for my {v}
priority|e|priority urgency importance severity level/pressing|Priority;How urgent it is|low medium high critical|with {v} priority;as {v} priority;with priority {v}
status|e|status state filter condition/situation|Status;State to filter by|open closed pending active archived in_progress done|that are {v};with status {v};marked {v}
format|e|format output_format type file_type export_format/output_kind|File format;Output format|pdf csv json xml html txt png|as {v};in {v} format;as a {v} file
unit|e|unit units scale temperature_unit/measure|Unit;Unit of the result|celsius fahrenheit kelvin|in {v}
unit2|e|unit units system measure/unit_system|Unit system;Units|metric imperial|in {v} units;using {v} units
order|e|order sort_order sort direction/arrangement|Sort order;Direction|asc desc|sorted {v};in {v} order
sort_by|e|sort_by order_by sort_key sort/arrange_by|Sort key;Field to sort by|price date name rating relevance size|sorted by {v};ordered by {v}
size_e|e|size size_name format/size_class|Size|small medium large|in size {v};, {v} size;in {v}
mode|e|mode method setting profile kind/variant|Mode;How to do it|fast slow auto manual quiet eco turbo safe|in {v} mode;using {v} mode;with mode {v}
travel|e|mode transport travel_mode vehicle by/conveyance|Means of transport|car train bus bicycle plane ferry|by {v};using the {v}
repeat|e|repeat frequency interval recurrence/cadence|How often|daily weekly monthly yearly|{v};repeating {v};on a {v} basis
env|e|environment env stage target/deploy_stage|Environment|production staging development test|in {v};on the {v} environment;to {v}
channel|e|channel via method medium/delivery_route|Channel;How to deliver it|email sms push phone|by {v};via {v};through {v}
cabin|e|class cabin travel_class category/comfort_level|Class|economy business first premium|in {v} class;, {v} class
meal|e|meal meal_type course/sitting|Meal|breakfast lunch dinner snack|for {v};as {v}
visibility|e|visibility access privacy scope/audience|Who can see it|public private internal|as {v};with {v} access;with visibility {v}
urgent|b|urgent is_urgent high_priority important/pressing_matter|Urgent or not;Whether it is urgent|bool|and mark it as urgent~and it is not urgent
notify|b|notify send_notification alert inform/ping_everyone|Whether to send a notification;Notify people|bool|and send a notification~without a notification
recursive|b|recursive deep include_subfolders/descend|Include subfolders|bool|including subfolders~without subfolders
force|b|force overwrite override/no_mercy|Overwrite without asking;Force it|bool|and force it~without forcing it
enabled|b|enabled on active state power/switched_on|True for on;Whether it is on|bool|and turn it on~and turn it off
private|b|private is_private hidden confidential/secluded|Whether it is private|bool|and keep it private~and make it public
dry_run|b|dry_run simulate preview test_only/rehearse|Only simulate;Dry run|bool|as a dry run~for real, not as a dry run
gift|b|gift gift_wrap is_gift/present_wrap|Gift wrapping|bool|with gift wrapping~without gift wrapping
tags|S|tags labels keywords categories topics/tag_list|Tags;Labels;List of tags|word|with the tags {v};tagged {v};with labels {v}
names|S|names people attendees participants members users/invitees|Names;People to invite;List of names|person|with {v};inviting {v};for {v}
emails|S|recipients emails to cc addresses/mailing_targets|Email addresses;Recipients|email|to {v};copying {v}
files|S|files paths attachments documents inputs/enclosures|Files;Paths of the files|file|with the files {v};attaching {v};for {v}
items|S|items products list entries ingredients things/goods|Items;List of items|thing|with {v};containing {v};: {v}
cities|S|cities stops locations waypoints places/stopovers|Cities;List of cities|city|through {v};in {v};for {v}
numbers|I|numbers values data ids list series/figures|Numbers;List of numbers;Values|num_int|{v};for {v};of {v};with the values {v}
old|s|old old_name from source current original/previous_label|Current name;Old value|word|from {v}
new|s|new new_name to target renamed/next_label|New name;New value|word|to {v}
num_a|n|a x first left value1 num1 number1/operand_one|First number;First value|num|{v}
num_b|n|b y second right value2 num2 number2/operand_two|Second number;Second value|num|and {v}
int_a|i|n number value x num input/integer_in|The number;A number|int_id|{v}
field|s|field column key attribute property/facet|Field name;Column|word|by {v};of the column {v}
table|s|table table_name collection dataset sheet/data_grid|Table;Name of the table|word|in the table {v};from {v};into table {v}
sport|s|sport discipline activity game/athletics|Sport|sport|for {v};in {v}
instrument|s|instrument device/sound_tool|Instrument|instrument|for the {v};on the {v}
"""
VALUES["num_int"] = lambda g: number(g.r, 0, 999)
TYPE = {"s": "string", "i": "integer", "n": "number", "b": "boolean", "e": "string", "S": "array", "I": "array"}
NUMBER_WORD = "zero one two three four five six seven eight nine ten eleven twelve".split()


class Slot:
    def __init__(self, line):
        self.key, self.type, names, descs, values, phrases = line.split("|", 5)
        train, held = names.split("/")
        self.train, self.held = train.split(), held.split()
        self.descs, self.phrases = descs.split(";"), phrases.split(";")
        self.choices = values.split() if self.type == "e" else None
        self.values = None if self.type == "e" else values

    def draw(self, g, choices=None):
        """(value, how a request writes it)"""
        r = g.r
        if self.type == "e":
            v = pick(r, choices)
            return v, v.replace("_", " ") if r.random() < 0.5 else v
        if self.type in "SI":
            v, n = [], r.choice((1, 2, 2, 3, 3, 4))
            while len(v) < n:
                x = VALUES[self.values](g)
                if x not in v:
                    v.append(x)
            return v, joined([str(x) for x in v]) if r.random() < 0.8 else ", ".join(str(x) for x in v)
        v = VALUES[self.values](g)
        if self.type == "b":
            return v, None
        if self.type == "i" and 2 <= v <= 12 and r.random() < 0.12:
            return v, NUMBER_WORD[v]
        return v, str(v)


SLOTS = {s.key: s for s in (Slot(x) for x in SLOT_TABLE.strip().split("\n"))}
# pairs that are mentioned together, in this order
PAIRS = (("origin", "target"), ("iso", "until"), ("floor", "budget"), ("old", "new"), ("lat", "lon"))
CLASH = (  # slots whose phrases in one request could be taken for each other
    {"city", "country", "origin", "target", "room", "folder", "project", "file", "repo", "host", "language", "color", "money", "unit"},
    {"date", "iso", "weekday", "month", "datetime", "year", "until"},
    {"time", "datetime"},
    {"person", "owner", "company", "names", "handle"},
    {"email", "emails", "phone", "address"},
    {"code", "int_id", "flight", "word", "symbol", "numbers", "int_a", "num_a"},
    {"title", "text", "query", "word", "new"},
    {"minutes", "hours", "nights"},
    {"count", "limit", "people", "amount"},
    {"mode", "travel", "env", "cabin"},
    {"items", "thing", "food", "files", "tags"},
    {"degrees", "percent", "weight", "length"},
)

# -------------------------------------------------------------------------------------------------------- tools by hand
# name | description | parameters as name:slot, "?" if optional | frames (¶: a line break) | fields of the result as name:value (none: a status)

TOOL_TABLE = """
get_current_weather|Get the current weather in a given location|location:city unit:unit?|What's the weather like in {location}?;How is the weather in {location}?;Weather in {location}, please, in {unit}.;Is it warm in {location} today?;Tell me the current weather in {location} in {unit}.|temperature:degrees condition:condition
get_forecast|Weather forecast for the next days|city:city days:nights?|What will the weather be in {city} over the next {days} days?;Give me the forecast for {city}.;Forecast for {city}, {days} days.;Will it rain in {city}?|condition:condition high:degrees
web_search|Search the web and return the best results|query:query max_results:limit?|Search the web for {query}.;Look up {query} online.;Find {max_results} web results about {query}.;Google {query} for me.|title:title url:url
wikipedia_summary|Summary of a Wikipedia article|topic:query language:language?|What does Wikipedia say about {topic}?;Give me a Wikipedia summary of {topic}.;Summarize the Wikipedia article on {topic} in {language}.|summary:text
fetch_url|Download a web page|url:url timeout:count?|Fetch {url}.;Open {url} and tell me what it says.;Download {url} with a timeout of {timeout} seconds.;Get the content of {url}|status:int_id title:title
add|Add two numbers|a:num_a b:num_b|Add {a} and {b}.;What is {a} plus {b}?;Sum of {a} and {b};{a} + {b} = ?|result:num
multiply|Multiply two numbers|a:num_a b:num_b|Multiply {a} by {b}.;What is {a} times {b}?;Product of {a} and {b}, please.|result:num
divide|Divide one number by another|dividend:num_a divisor:num_b|Divide {dividend} by {divisor}.;What is {dividend} divided by {divisor}?|quotient:num
square_root|Square root of a number|number:int_a|What is the square root of {number}?;Compute the square root of {number}.|result:num
calculator|Evaluate a mathematical expression|expression:expression|Calculate {expression}.;What is {expression}?;Evaluate {expression};Use the calculator: {expression}|result:num
factorial|Factorial of a number|n:int_a|What is the factorial of {n}?;Compute {n} factorial.|result:int_id
is_prime|Check whether a number is prime|number:int_a|Is {number} a prime number?;Check if {number} is prime.|prime:bool
average|Average of a list of numbers|values:numbers|What is the average of {values}?;Compute the mean of {values}.|average:num
sort_numbers|Sort a list of numbers|numbers:numbers order:order?|Sort {numbers}.;Sort the numbers {numbers} in {order} order.|count:count
random_number|Random integer between two bounds|low:num_a high:num_b|Give me a random number between {low} and {high}.;Pick a number from {low} to {high}.|number:int_id
flip_coin|Flip a coin||Flip a coin.;Toss a coin for me.;Heads or tails?|side:word
get_current_time|Current date and time|timezone:city?|What time is it?;What time is it in {timezone}?;Tell me the current time in {timezone}.;What is the time now?|time:time
get_date|Today's date||What is the date today?;Which day is it?;Tell me today's date.|date:date
send_message|Send a chat message to somebody|recipient:person message:text|Send {recipient} the message "{message}";Tell {recipient}: {message};Write to {recipient} that says: {message};Message {recipient}: "{message}"|
post_message|Post a message to a channel|channel:word text:text|Post "{text}" in the channel {channel}.;Write to #{channel}: {text}|message_id:code
send_sms|Send a text message to a phone number|phone_number:phone message:text|Text {phone_number}: {message};Send an SMS to {phone_number} saying "{message}"|
call_contact|Call somebody|name:person|Call {name}.;Ring {name}, please.;I want to talk to {name} on the phone.|
create_reminder|Set a reminder|text:title time:time date:date?|Remind me of {text} at {time}.;Set a reminder for {text} on {date} at {time}.;At {time}, remind me about {text}.|
add_todo|Add an entry to the to-do list|task:title due:date? priority:priority?|Add {task} to my to-do list.;Put {task} on my list, due {due}.;New to-do: {task}, {priority} priority.;I have to do {task} by {due}, add it to my list.|id:int_id
complete_task|Mark a task as done|task_id:int_id|Mark task {task_id} as done.;I finished task {task_id}.;Task {task_id} is complete.|
set_alarm|Set an alarm clock|time:time days:weekday?|Wake me up at {time}.;Set an alarm for {time}.;Set an alarm at {time} on {days}.|
list_events|Events of the calendar on a day|date:date|What is on my calendar on {date}?;Which events do I have {date}?;Show my appointments for {date}.|count:count first:title
find_free_slot|Find free time for a meeting|attendees:names duration:minutes date:date?|Find a free slot of {duration} minutes with {attendees}.;When can {attendees} meet for {duration} minutes on {date}?|start:time
schedule_meeting|Schedule a meeting with people|title:title attendees:names date:date time:time|Schedule "{title}" with {attendees} on {date} at {time}.;Set up a meeting called {title} on {date}, {time}, with {attendees}.|meeting_id:code
write_file|Write text to a file|path:file content:text|Write "{content}" to {path}.;Save the text "{content}" in the file {path}.;Create {path} with the content: {content}|bytes:int_id
delete_file|Delete a file|path:file force:force?|Delete {path}.;Remove the file {path}.;Please get rid of {path}.|
move_file|Move or rename a file|source:file destination:folder|Move {source} to {destination}.;Put {source} into the folder {destination}.|
copy_file|Copy a file|from_path:file to_path:folder|Copy {from_path} to {to_path}.;Make a copy of {from_path} in {to_path}.|
search_files|Search files for a text|pattern:query directory:folder|Search for {pattern} in {directory}.;Which files in {directory} contain {pattern}?;Grep {pattern} under {directory}|matches:count
create_directory|Create a folder|path:folder|Create the folder {path}.;Make a new directory {path}.|
execute_python|Run Python code|code:expression|Run this Python code: print({code});Execute {code} in Python.|output:num
run_sql|Run a query on the database|query:sql database:word?|Run the query {query};Execute {query} on the database {database};Query the database: {query}|rows:count
run_tests|Run the test suite|path:folder? verbose:bool?|Run the tests in {path}.;Run all tests.;Please run the test suite.|passed:count failed:count
git_commit|Commit the staged changes|message:title|Commit with the message "{message}".;Make a commit: {message}|commit:code
git_checkout|Switch to a branch|branch:branch|Check out {branch}.;Switch to the branch {branch}.|
create_pull_request|Open a pull request|repo:repo title:title head:branch base:branch?|Open a pull request in {repo} titled "{title}" from {head}.;Create a PR "{title}" from {head} in {repo}.|number:int_id
create_issue|Create an issue in a repository|repo:repo title:title body:text? labels:tags?|Create an issue in {repo} called "{title}".;File an issue titled "{title}" in {repo} with the text "{body}".;Open a ticket "{title}" in {repo} with labels {labels}.|number:int_id
list_issues|List the issues of a repository|repo:repo state:status?|List the issues in {repo}.;Which {state} issues does {repo} have?|count:count
get_commit|Details of a commit|repo:repo sha:code|Show commit {sha} in {repo}.;What changed in commit {sha} of {repo}?|author:person message:title
restart_service|Restart a service on a server|service:word host:host?|Restart {service}.;Restart the service {service} on {host}.;{service} hangs on {host}, please restart it.|
ping_host|Ping a host|host:host count:count?|Ping {host}.;Is {host} reachable?;Ping {host} {count} times.|ms:num
check_port|Test whether a port is open|host:host port:port|Is port {port} open on {host}?;Check port {port} of {host}.|open:bool
get_logs|Read the log of a service|service:word lines:count?|Show the logs of {service}.;Show the last {lines} log lines of {service}.|lines:count last:title
deploy_app|Deploy an application|app:project version:version environment:env|Deploy {app} {version} to {environment}.;Roll out version {version} of {app} on {environment}.|url:url
scale_service|Change the number of instances|service:word replicas:count|Scale {service} to {replicas} instances.;Run {replicas} replicas of {service}.|
get_cpu_usage|CPU load of a machine|host:host|How busy is {host}?;What is the CPU usage of {host}?|percent:percent
resolve_dns|Look up the address of a domain|domain:host|Resolve {domain}.;What is the IP address of {domain}?|ip:host
translate|Translate text into another language|text:text target_language:language source_language:language?|Translate "{text}" into {target_language}.;How do you say "{text}" in {target_language}?;Please translate to {target_language}: {text}|translation:title
detect_language|Detect the language of a text|text:text|Which language is this: {text};What language is "{text}" written in?|language:language
summarize_text|Make a summary|text:text max_words:count?|Summarize: {text};Summarize this in {max_words} words: {text}|summary:title
analyze_sentiment|Mood of a text|text:text|What is the sentiment of "{text}"?;Is this positive or negative: {text}|sentiment:word
define_word|Definition of a word|word:word|What does {word} mean?;Define {word}.;Definition of "{word}"?|definition:text
get_synonyms|Synonyms of a word|word:word limit:limit?|Give me synonyms for {word}.;What are {limit} other words for {word}?|first:word
spell_check|Check the spelling of a text|text:text|Check the spelling of "{text}".;Are there typos in: {text}|errors:count
get_exchange_rate|Exchange rate between two currencies|base:money target:money2|What is the exchange rate from {base} to {target}?;How many {target} is one {base}?;{base} to {target} rate, please.|rate:num
stock_quote|Latest quote of a stock|ticker:symbol|What is {ticker} trading at?;Quote for {ticker}, please.;How is {ticker} doing today?|price:amount
transfer_money|Transfer money to an account|amount:amount to_account:code currency:money?|Transfer {amount} dollars to account {to_account}.;Send {amount} {currency} to {to_account}.;Move {amount} to the account {to_account}.|transaction:code
get_balance|Balance of an account|account:code|What is the balance of account {account}?;How much money is on {account}?|balance:amount
pay_invoice|Pay an invoice|invoice_number:code|Pay invoice {invoice_number}.;Please settle the invoice {invoice_number}.|
calculate_tip|Tip for a bill|bill:amount percent:percent|What is a {percent}% tip on {bill} dollars?;Calculate {percent} percent tip for a bill of {bill}.|tip:amount
calculate_loan|Monthly payment of a loan|amount:amount years:small rate:num|What is the monthly payment for a loan of {amount} over {years} years at {rate} percent?|payment:amount
calculate_bmi|Body mass index|weight:weight height:length|What is my BMI if I weigh {weight} kg and am {height} m tall?;Compute the BMI for {weight} kg and {height} m.|bmi:num
convert_units|Convert a value between units|value:num from_unit:unit_a to_unit:unit_b|Convert {value} {from_unit} to {to_unit}.;How many {to_unit} are {value} {from_unit}?|result:num
search_flights|Search for flights|origin:origin destination:target date:date cabin:cabin?|Find flights from {origin} to {destination} on {date}.;I want to fly from {origin} to {destination} {date}, {cabin} class.;Flights {origin} to {destination}, {date}?|flight:flight price:price
flight_status|Status of a flight|flight_number:flight|Is flight {flight_number} on time?;What is the status of {flight_number}?|status:word gate:code
find_trains|Train connections|from:origin to:target time:time?|Is there a train from {from} to {to}?;Trains from {from} to {to} at {time}, please.|departure:time
rent_car|Rent a car|city:city start_date:date days:nights|Rent a car in {city} for {days} days from {start_date}.;I need a rental car in {city} on {start_date} for {days} days.|price:price
call_taxi|Order a taxi|pickup:address people:people?|Get me a taxi at {pickup}.;I need a cab at {pickup} for {people} people.|minutes:minutes
get_directions|Route between two places|start:address end:address2 mode:travel?|How do I get from {start} to {end}?;Directions from {start} to {end} by {mode}.|minutes:minutes
geocode|Coordinates of an address|address:address|What are the coordinates of {address}?;Geocode {address}.|latitude:lat longitude:lon
nearby_places|Places near a position|latitude:lat longitude:lon category:word?|What is near {latitude}, {longitude}?;Find {category} near latitude {latitude} and longitude {longitude}.|name:title
find_restaurants|Find restaurants|location:city cuisine:language? max_price:budget?|Find restaurants in {location}.;I want {cuisine} food in {location}.;Where can I eat in {location} for less than {max_price} dollars?|name:title rating:rating
order_food|Order food for delivery|items:items address:address|Order {items} to {address}.;Deliver {items} to {address}, please.|order_id:code
get_nutrition|Nutrition facts of a food|food:food grams:count?|How many calories does {food} have?;Nutrition facts of {grams} grams of {food}.|calories:int_id
log_workout|Record a workout|activity:sport minutes:minutes|I did {minutes} minutes of {activity}, log it.;Log {minutes} minutes of {activity}.|
log_weight|Record the body weight|weight:weight date:date?|My weight is {weight} kg, record it.;Log {weight} kg for {date}.|
book_doctor|Book an appointment with a doctor|doctor:person date:date time:time?|Book an appointment with Dr. {doctor} on {date}.;I need to see Dr. {doctor} on {date} at {time}.|
set_thermostat|Set the temperature of a room|temperature:degrees room:room?|Set the temperature to {temperature} degrees.;Heat the {room} to {temperature} degrees.;Set the thermostat in the {room} to {temperature}.|
set_brightness|Brightness of a lamp|room:room level:percent|Dim the light in the {room} to {level}%.;Set the {room} light to {level} percent.|
lock_door|Lock or unlock a door|door:room locked:bool_lock|{locked?Lock:Unlock} the {door} door.;Please {locked?lock:unlock} the door of the {door}.|
start_vacuum|Send the vacuum robot|room:room mode:mode?|Vacuum the {room}.;Clean the {room} in {mode} mode.;Start the robot in the {room}.|
play_song|Play a song|title:title artist:person?|Play {title}.;Play the song "{title}" by {artist}.;I want to hear {title}.|
create_playlist|Make a playlist|name:title songs:names?|Create a playlist called {name}.;Make a playlist named "{name}".|id:code
set_volume|Set the volume|level:percent|Set the volume to {level}.;Volume {level} percent, please.;Turn it to {level}%.|
recommend_movie|Recommend a movie|genre:word year:year?|Recommend a {genre} movie.;Suggest a {genre} film from {year}.|title:title
get_movie_info|Facts about a movie|title:title year:year?|Tell me about the movie {title}.;Who directed "{title}"?;Facts about {title} from {year}?|director:person year:year
search_books|Search for books|author:person? title:title?|Find books by {author}.;Do you have the book "{title}"?;Search for {title} by {author}.|count:count
add_to_cart|Put a product into the cart|product_id:code quantity:count|Add {quantity} of product {product_id} to my cart.;Put {product_id} in the cart, {quantity} pieces.|total:amount
apply_coupon|Use a coupon|code:code|Apply the coupon {code}.;Use code {code} on my cart.|discount:percent
search_catalog|Search the shop|keyword:query max_price:budget? sort_by:sort_by?|Show me {keyword}.;Find {keyword} under {max_price} dollars.;Search the shop for {keyword}, sorted by {sort_by}.|count:count
check_stock|How many pieces are left|sku:code|Is {sku} in stock?;How many of {sku} are left?|stock:count
return_item|Send an article back|order:code reason:title?|I want to return order {order}.;Return {order} because of {reason}.|label:code
write_review|Write a review|product:thing rating:rating text:text?|Give the {product} {rating} stars.;Review the {product}: {rating} stars, "{text}"|
create_customer|Create a customer record|name:person email:email phone:phone?|Create a customer {name} with the email {email}.;Add {name}, {email}, to the customers.;New customer: {name}, {email}, {phone}|id:int_id
update_email|Change the email address of a user|user_id:int_id email:email|Change the email of user {user_id} to {email}.;User {user_id} has a new address: {email}|
reset_password|Reset the password of an account|username:handle|Reset the password of {username}.;{username} forgot the password, please reset it.|
grant_access|Give a user access to something|user:handle resource:file role:role_e|Give {user} {role} access to {resource}.;Make {user} {role} of {resource}.|
assign_ticket|Assign a ticket to somebody|ticket:code agent:person|Assign ticket {ticket} to {agent}.;{agent} should take ticket {ticket}.|
close_ticket|Close a support ticket|ticket_id:code resolution:title?|Close ticket {ticket_id}.;Ticket {ticket_id} is solved: {resolution}. Close it.|
hire_employee|Register a new employee|name:person position:job start:date|Hire {name} as a {position} from {start}.;{name} starts on {start} as {position}, register this.|employee_id:int_id
request_leave|Ask for days off|employee:person from:iso to:until|{employee} wants to take leave from {from} to {to}.;Request vacation for {employee}, {from} until {to}.|
track_package|Where a package is|tracking_number:code carrier:company?|Where is my package {tracking_number}?;Track {tracking_number}.;Track the parcel {tracking_number} from {carrier}.|location:city
generate_image|Make a picture from a text|prompt:title size:size_e? style:word?|Draw {prompt}.;Make a picture of {prompt}.;Generate a {size} image of {prompt}.|url:url
resize_image|Resize a picture|file:file width:length height:length2|Resize {file} to {width} by {height}.;Make {file} {width} wide and {height} high.|
convert_file|Convert a file to another format|file:file format:format|Convert {file} to {format}.;I need {file} as {format}.|output:file
compress_files|Pack files into an archive|files:files archive:file|Pack {files} into {archive}.;Zip {files} as {archive}.|bytes:int_id
hash_text|Hash of a text|text:word algorithm:hash_e?|What is the hash of {text}?;Hash {text} with {algorithm}.|hash:code
generate_password|Make a random password|length:count symbols:bool?|Generate a password with {length} characters.;I need a new password of {length} characters.|password:code
encode_base64|Encode a text in base64|text:title|Encode "{text}" in base64.;base64 of {text}?|result:code
validate_email|Check an email address|email:email|Is {email} a valid address?;Validate {email}.|valid:bool
get_news|Latest news|topic:query country:country?|What is the news about {topic}?;News on {topic} from {country}, please.;Any news on {topic}?|headline:title
get_population|Population of a place|place:country|How many people live in {place}?;What is the population of {place}?|population:int_id
get_holidays|Public holidays|country:country year:year|Which holidays does {country} have in {year}?;Public holidays of {country}, {year}|count:count
sunrise_time|Sunrise and sunset|city:city date:date?|When does the sun rise in {city}?;When is sunset in {city} on {date}?|sunrise:time sunset:time
measure_air|Air quality|city:city|How is the air in {city}?;What is the air quality in {city}?|index:percent
move_robot|Move the robot|direction:direction_e distance:length|Move {distance} meters {direction}.;Drive the robot {direction} by {distance} meters.|
read_sensor|Value of a sensor|sensor_id:code|Read sensor {sensor_id}.;What does the sensor {sensor_id} show?|value:num
feed_animal|Feed an animal|animal:animal food:food amount:count?|Feed the {animal} with {food}.;Give the {animal} {amount} portions of {food}.|
water_plants|Water plants|area:room minutes:minutes|Water the plants in the {area} for {minutes} minutes.|
save_note|Save a note|text:text tag:word?|Note: {text};Save this note: "{text}";Remember this under {tag}: {text}|id:code
remember|Store a fact in memory|key:word value:title|Remember that {key} is {value}.;Store {value} under {key}.|
recall|Read a fact from memory|key:word|What did I store under {key}?;Recall {key}.|value:title
ask_expert|Ask a specialist model|question:question_t|Ask the expert: {question};Please ask a specialist: {question}|answer:text
bash|Run a command in a bash shell|command:command timeout:count?|Run {command};Execute "{command}".;In the shell, run {command} with a timeout of {timeout} seconds.;What does {command} print?;Please run {command} for me.|output:title
view_file|Show lines of a file|path:file start_line:count? end_line:lines_to?|Show me {path}.;View lines {start_line} to {end_line} of {path}.;Open {path} from line {start_line} to line {end_line}.;Let me see {path}.|lines:count
str_replace|Replace a text in a file|path:file old_str:snip new_str:snip2|In {path}, replace {old_str} with {new_str}.;Change {old_str} to {new_str} in {path}.;Edit {path}: {old_str} becomes {new_str}.|replaced:count
insert_line|Insert text after a line of a file|path:file line:count text:snip|Insert {text} after line {line} of {path}.;Add "{text}" at line {line} in {path}.|
append_text|Append text to the end of a file|filename:file text:lines|Append this to {filename}:¶{text};Add the following to the end of {filename}:¶{text}|bytes:int_id
create_file|Create a file with the given content|path:file content:lines overwrite:force?|Create {path} with this content:¶{content};Write a new file {path}:¶{content};Save this as {path}:¶{content}|
glob|Find files by a pattern|pattern:globs root:folder?|Find all files matching {pattern}.;Which files match {pattern} in {root}?;List {pattern} under {root}.|count:count
grep|Search text in files|pattern:regex path:folder? ignore_case:bool_case?|Grep for {pattern}.;Search {path} for the pattern {pattern}.;Where does {pattern} occur in {path}?|matches:count
http_request|Make an HTTP request|method:http_e url:url body:json_text?|Send a {method} request to {url}.;{method} {url};Make a {method} call to {url} with the body {body}.|status:int_id
browser_navigate|Open a page in the browser|url:url|Go to {url}.;Navigate to {url}.;Open {url} in the browser.|title:title
browser_click|Click an element of the page|selector:selector|Click {selector}.;Click on the element {selector}.;Press the button {selector}.|
browser_type|Type text into an element|selector:selector text:title submit:bool_sub?|Type "{text}" into {selector}.;Enter {text} in the field {selector}.|
take_screenshot|Take a picture of the screen|filename:file? full_page:bool_full?|Take a screenshot.;Make a screenshot and save it as {filename}.;Capture the screen to {filename}.|path:file
docker_run|Start a container|image:image name:word? ports:port?|Start a container from {image}.;Run the image {image} as {name} on port {ports}.;docker run {image}, please.|container:code
docker_logs|Log of a container|container:code tail:count?|Show the logs of container {container}.;Last {tail} lines of the container {container}, please.|last:title
kubectl_get|List resources of a cluster|resource:kube_e namespace:word?|List the {resource}.;Show all {resource} in the namespace {namespace}.;Which {resource} are running in {namespace}?|count:count
install_package|Install a package|package:word version:version?|Install {package}.;Install {package} in version {version}.;I need the package {package}.|
git_diff|Show what changed|path:file? base:branch?|Show the diff of {path}.;What changed in {path} compared with {base}?;Show the git diff.|files:count
git_log|Show the latest commits|branch:branch? max_count:count?|Show the last {max_count} commits.;Show the log of {branch}.;The last {max_count} commits on {branch}, please.|last:title
merge_branch|Merge a branch into another|source:branch target:branch2|Merge {source} into {target}.;Please merge the branch {source} to {target}.|commit:code
search_code|Search in the source code|query:query language:code_e? repo:repo?|Search the code for {query}.;Find {query} in the {language} code.;Where is {query} in {repo}?|matches:count
explain_error|Explain an error message|message:title language:code_e?|Explain the error "{message}".;What does the {language} error "{message}" mean?|cause:title
format_code|Format source code|path:file style:style_e?|Format {path}.;Format {path} in {style} style.|
read_csv|Read a table of values from a CSV file|file_path:file delimiter:delim?|Read the CSV {file_path}.;Load {file_path} as CSV.|rows:count
plot_chart|Draw a chart of numbers|values:numbers kind:chart_e? title:title?|Plot {values}.;Draw a {kind} chart of {values}.;Make a {kind} chart of {values} titled "{title}".|file:file
statistics|Mean, median and deviation of numbers|data:numbers|Give me statistics of {data}.;What are the median and mean of {data}?|mean:num median:num
solve_equation|Solve an equation|equation:equation variable:letter?|Solve {equation}.;Solve {equation} for {variable}.;What is the solution of {equation}?|solution:num
power|Raise a number to a power|base:num_a exponent:small|What is {base} to the power of {exponent}?;Raise {base} to {exponent}.;{base} ^ {exponent}?|result:num
percentage|Percentage of a number|percent:percent of:num_b|What is {percent}% of {of}?;Compute {percent} percent of {of}.|result:num
days_between|Days between two dates|start:iso end:until|How many days are there between {start} and {end}?;Days from {start} to {end}?|days:count
add_days|Add days to a date|date:iso days:nights|Which date is {days} days after {date}?;Add {days} days to {date}.|date:date
convert_timezone|Convert a time to another time zone|time:time from_zone:origin to_zone:target|What is {time} in {from_zone} in {to_zone} time?;Convert {time} from {from_zone} to {to_zone}.|time:time
turn_on|Switch a device on|entity_id:entity|Turn on {entity_id}.;Switch {entity_id} on.;{entity_id} on, please.|
turn_off|Switch a device off|entity_id:entity|Turn off {entity_id}.;Switch {entity_id} off.;{entity_id} off, please.|
get_state|State of a device|entity_id:entity|What is the state of {entity_id}?;Is {entity_id} on?;Check {entity_id}.|state:word
set_color|Set the color of a lamp|lamp:room color:color|Make the {lamp} light {color}.;Set the color of the {lamp} lamp to {color}.|
open_garage|Open or close the garage door|open:bool_open|{open?Open:Close} the garage.;Please {open?open:close} the garage door.|
charge_car|Charge the electric car|target_percent:percent start_time:time?|Charge the car to {target_percent}%.;Charge my car to {target_percent} percent from {start_time}.|minutes:minutes
search_memory|Search the notes of earlier chats|query:query top_k:limit?|What did I tell you about {query}?;Search your memory for {query}.;Find {top_k} memories about {query}.|memory:text
search_documents|Search the knowledge base|query:query top_k:limit? filter:word?|Search our documents for {query}.;What do the documents say about {query}?;Find the {top_k} best documents on {query}.|document:title
ask_user|Ask the user a question|question:question_t|Ask me this: {question};Put this question to the user: {question}|answer:word
finish|End the task with a summary|summary:text|Finish with the summary "{summary}".;We are done: {summary}|
delegate_task|Give a task to another agent|agent:handle task:title|Give the task "{task}" to {agent}.;Let {agent} do this: {task};Delegate {task} to the agent {agent}.|task_id:code
schedule_job|Run a job at regular times|name:word cron:cron|Schedule {name} with the cron line {cron}.;Run {name} at {cron}.|
upload_file|Upload a file to a bucket|file:file bucket:word public:private?|Upload {file} to the bucket {bucket}.;Put {file} into {bucket}.|url:url
send_invoice|Send an invoice to a customer|customer:person amount:amount due_date:date?|Send {customer} an invoice over {amount} dollars.;Bill {customer} {amount} dollars, due {due_date}.|invoice:code
refund_payment|Give money back|payment_id:code amount:amount? reason:title?|Refund payment {payment_id}.;Refund {amount} dollars of {payment_id}.;Refund {payment_id} because of {reason}.|refund:code
split_bill|Split a bill|total:amount people:people|Split {total} dollars among {people} people.;How much does each pay if {people} people share {total} dollars?|each:amount
buy_shares|Buy shares|symbol:symbol quantity:count limit_price:budget?|Buy {quantity} shares of {symbol}.;Buy {quantity} {symbol} at most at {limit_price} dollars.|order:code
crypto_price|Price of a cryptocurrency|coin:project currency:money?|What is {coin} worth?;Price of {coin} in {currency}?;How much is one {coin} in {currency}?|price:amount
mortgage_rate|Interest rate of a mortgage|country:country years:small|What is the mortgage rate in {country} for {years} years?|rate:num
random_joke|Tell a joke|category:word?|Tell me a joke.;Tell me a joke about {category}.;Make me laugh.|joke:text
quote_of_day|Quote of the day||Give me the quote of the day.;Which quote is it today?|quote:text
trivia_question|Question for a quiz|topic:query difficulty:hard_e?|Ask me a {difficulty} quiz question about {topic}.;Give me a trivia question on {topic}.|question:text
horoscope|Horoscope for a sign|sign:zodiac|What is the horoscope for {sign}?;I am a {sign}, what do the stars say?|text:text
sports_score|Latest score of a team|team:company league:word?|How did {team} play?;What is the score of {team}?;Latest result of {team}, please.|score:code
league_table|Table of a league|league:word season:year?|Show the table of the {league} league.;How does the {league} table look in {season}?|leader:company
movie_showtimes|Show times in cinemas|movie:title city:city date:date?|When does "{movie}" run in {city}?;Show times of {movie} in {city} on {date}.|time:time
buy_tickets|Buy tickets for an event|event:title quantity:count seat_class:cabin?|Buy {quantity} tickets for {event}.;Get me {quantity} tickets to "{event}" in {seat_class}.|order:code
concert_search|Find concerts|artist:person city:city? month:month?|Does {artist} play in {city}?;Concerts of {artist} in {month}?;When is {artist} on tour?|venue:title
plan_workout|Make a training plan|goal:title days_per_week:small level:hard_e?|Make a workout plan for {goal}, {days_per_week} days a week.;I want a {level} plan for {goal} with {days_per_week} days per week.|plan:title
track_calories|Note what was eaten|food:food calories:int_id meal:meal?|I ate {food} with {calories} calories.;Log {calories} calories of {food} for {meal}.|total:int_id
drug_interaction|Check whether two drugs can be taken together|drug_a:project drug_b:project2|Can I take {drug_a} with {drug_b}?;Check {drug_a} and {drug_b} for interactions.|risk:word
find_pharmacy|Find a pharmacy|zip_code:zip open_now:bool_open2?|Where is a pharmacy near {zip_code}?;Find a pharmacy in {zip_code}.|name:company
adopt_pet|Ask to adopt an animal|pet_name:person shelter:company|I want to adopt {pet_name} from {shelter}.;Request the adoption of {pet_name} at {shelter}.|request:code
rent_apartment|Search flats to rent|city:city rooms:small max_rent:budget?|Find a flat with {rooms} rooms in {city}.;I need {rooms} rooms in {city} for less than {max_rent} dollars.|count:count
visa_check|Whether a visa is needed|nationality:language destination:country|Does a {nationality} citizen need a visa for {destination}?|visa:bool
baggage_rules|Baggage rules of an airline|airline:company cabin_class:cabin?|What may I take on {airline}?;Baggage rules of {airline} in {cabin_class}?|kilograms:count
elevation|Height above sea level|lat:lat lon:lon|How high is the point {lat}, {lon}?;Elevation at {lat} {lon}, please.|meters:int_id
earthquakes|Recent earthquakes|region:country min_magnitude:rating?|Were there earthquakes in {region}?;Earthquakes in {region} above magnitude {min_magnitude}?|count:count
"""

HELD_TABLE = """
sail_route|Plan a sailing route between two harbours|from_port:origin to_port:target boat:word?|Plan a route by boat from {from_port} to {to_port}.;I want to sail from {from_port} to {to_port} with the boat {boat}.|hours:hours
observe_star|Point the telescope at a star|star_name:project exposure_minutes:minutes|Point the telescope at {star_name} and expose for {exposure_minutes} minutes.;Observe {star_name} for {exposure_minutes} minutes.|magnitude:num
inspect_hive|Record the inspection of a bee hive|hive_id:int_id queen_seen:bool_q? notes:text?|I looked at hive {hive_id}, write it down.;Inspect hive {hive_id}: "{notes}"|
tune_piano|Order a piano tuner|street:address appointment:date|Have the piano at {street} tuned on {appointment}.;Send a piano tuner to {street} on {appointment}.|
borrow_book|Lend a library book to a reader|isbn:code reader:person weeks:small?|{reader} wants to borrow the book {isbn}.;Lend {isbn} to {reader} for {weeks} weeks.|due:date
reserve_court|Reserve a tennis court|club:company court_number:small slot:time|Reserve court {court_number} at {club} at {slot}.;I want to play on court {court_number} of {club}, {slot}.|
dive_log|Add a dive to the diving log|site:title max_depth_m:length bottom_time:minutes|I dived at {site}, {max_depth_m} m deep, {bottom_time} minutes.;Log a dive at {site}: depth {max_depth_m} m, {bottom_time} minutes.|dives:count
mix_paint|Recipe to mix a paint|target_color:color litres:num|Mix {litres} litres of {target_color} paint.;How do I get {litres} litres of {target_color}?|base:color
ski_conditions|Snow report of a ski resort|resort:city|How is the snow in {resort}?;Can I ski in {resort} today?;Snow report for {resort}, please.|snow_cm:count lifts_open:count
brew_coffee|Start the coffee machine|beverage:drink cups:small strength:strength_e?|Make {cups} cups of {beverage}.;Brew {cups} {strength} cups of {beverage}.|
groom_dog|Book a dog groomer|dog_name:person breed:word? visit_day:weekday|Book the groomer for my dog {dog_name} on {visit_day}.;{dog_name} is a {breed} and needs grooming on {visit_day}.|
lookup_plant|Facts about a plant|latin_name:project|What do you know about the plant {latin_name}?;Tell me about {latin_name}.|family:word height_cm:count
estimate_tide|Time of high tide at a beach|beach:city on_day:date|When is high tide at {beach} on {on_day}?;High tide in {beach}, {on_day}?|high_tide:time
submit_expense|Hand in an expense|category_name:word total_amount:amount receipt_file:file?|I spent {total_amount} dollars on {category_name}, submit it.;Submit an expense of {total_amount} for {category_name} with the receipt {receipt_file}.|expense_no:code
clean_pool|Clean the swimming pool|chlorine_grams:count start_at_hour:time|Clean the pool at {start_at_hour} with {chlorine_grams} grams of chlorine.;Start the pool cleaning at {start_at_hour}, {chlorine_grams} g chlorine.|
chess_move|Make a move in the chess game|game_code:code from_square:square to_square:square2|In game {game_code}, move from {from_square} to {to_square}.;Play {from_square} to {to_square} in {game_code}.|check:bool
sign_document|Sign a document electronically|document_ref:code signer_email:email|Let {signer_email} sign the document {document_ref}.;Send {document_ref} to {signer_email} for signature.|
find_tutor|Find a private teacher|school_subject:subject town_name:city hourly_budget:budget?|Find a {school_subject} tutor in {town_name}.;I need help with {school_subject} in {town_name} for less than {hourly_budget} dollars an hour.|tutor:person
repair_request|Report something broken in a flat|flat_no:int_id what_is_broken:thing urgent:urgent?|In flat {flat_no} the {what_is_broken} is broken.;Report a broken {what_is_broken} in flat {flat_no}.|case:code
launch_rocket|Start the countdown of a rocket|rocket_name:project countdown_seconds:count|Launch the rocket {rocket_name} in {countdown_seconds} seconds.;Start the countdown for {rocket_name}: {countdown_seconds} seconds.|
vote_poll|Vote in a poll|poll_id:code option_text:title|Vote "{option_text}" in poll {poll_id}.;In the poll {poll_id} I choose {option_text}.|votes:count
bake_bread|Program the bread machine|loaf_grams:count crust:crust_e|Bake a loaf of {loaf_grams} grams with a {crust} crust.;Make me bread, {loaf_grams} g, {crust} crust.|ready_at:time
match_blood|Check whether two blood groups fit|donor:blood patient:blood2|Can {donor} be given to {patient}?;Does blood group {donor} fit a patient with {patient}?|fits:bool
print_3d|Print a model on the 3D printer|model_file:file material:word copies:small?|Print {model_file} in {material}.;Print {copies} copies of {model_file} using {material}.|minutes:minutes
museum_tickets|Buy museum tickets|museum:title adults:small children:small2? visit_date:date|Buy tickets for the {museum} museum on {visit_date}, {adults} adults.;{adults} adults and {children} children want to visit the {museum} museum on {visit_date}.|total:price
archive_channel|Archive a chat channel|channel_name:word keep_history:bool_keep?|Archive the channel {channel_name}.;Please archive #{channel_name}.|
rotate_image|Turn a picture|image_file:file angle:count|Rotate {image_file} by {angle} degrees.;Turn the picture {image_file} {angle} degrees.|
lend_bike|Unlock a shared bicycle|bike_code:code station:title?|Unlock bike {bike_code}.;I want to ride the bike {bike_code} from the station {station}.|
identify_song|Find out which song has these words|lyrics:title|Which song has the words "{lyrics}"?;What song goes like {lyrics}?|song:title artist:person
subscribe_newsletter|Subscribe to a newsletter|newsletter_name:title subscriber:email|Subscribe {subscriber} to the newsletter {newsletter_name}.;Put {subscriber} on the list of "{newsletter_name}".|
moon_phase|Phase of the moon on a date|on:date|What is the phase of the moon on {on}?;How full is the moon on {on}?|phase:word
parking_spot|Find a free parking space|near_address:address max_fee:budget?|Where can I park near {near_address}?;Find parking near {near_address} under {max_fee} dollars.|spot:code
compare_texts|Compare two files|left_file:file right_file:file2|Compare {left_file} with {right_file}.;What is the difference between {left_file} and {right_file}?|changes:count
donate_blood|Make a donation appointment|donor_name:person center:city day_wanted:weekday|{donor_name} wants to donate blood in {center} on {day_wanted}.|
mute_participant|Mute somebody in a call|call_id:code participant:person|Mute {participant} in the call {call_id}.;{participant} is too loud in {call_id}, mute them.|
book_studio|Book a recording studio|studio:title band:company hours_needed:hours|Book the studio {studio} for {band}, {hours_needed} hours.;{band} needs {studio} for {hours_needed} hours.|price:price
"""

# slots that one tool needs only
SLOT_EXTRA = """
unit_a|s|from_unit source_unit unit from/|Source unit;Unit to convert from|unit_word|from {v}
unit_b|s|to_unit target_unit to/|Target unit;Unit to convert to|unit_word|to {v}
address2|s|end destination to/|End point;Where to go|address|to {v}
length2|n|height size2/|Height|length|by {v}
file2|s|right second_file other/|Second file|file|with {v}
small|i|number count n/|Number|small|{v}
small2|i|count2 second/|Number|small|{v}
job|s|job position role title/|Position|job|as {v}
drink|s|drink beverage/|Drink|drink|of {v}
subject|s|subject course/|Subject|subject|in {v}
square|s|from_square/|Square, like e4|square|from {v}
square2|s|to_square/|Square, like e4|square|to {v}
blood|s|donor/|Blood group|blood|from {v}
blood2|s|patient/|Blood group|blood|to {v}
question_t|s|question prompt/|The question|question|: {v}
money2|s|to_currency target quote/|Target currency|money2|to {v}
bool|b|flag/|Yes or no|bool|~
bool_lock|b|locked lock/|True to lock|bool|~
bool_q|b|queen_seen/|Whether the queen was seen|bool|~
bool_keep|b|keep_history/|Keep the history|bool|~
num|n|value amount number x/|Number;Value|num|{v}
role_e|e|role access permission/|Role|owner editor viewer admin|as {v}
hash_e|e|algorithm method/|Hash algorithm|md5 sha1 sha256 sha512|with {v}
direction_e|e|direction way/|Direction|forward backward left right|{v}
strength_e|e|strength/|Strength|mild normal strong|{v}
crust_e|e|crust/|Crust|light medium dark|{v}
lines_to|i|end_line last_line to/|Last line|count2|to line {v}
snip|s|old_str old find before/|Text to find|snippet|{v}
snip2|s|new_str new replace_with after/|New text|snippet2|{v}
lines|s|content text body file_text/|Content of the file|lines|: {v}
globs|s|pattern glob mask/|Pattern with * and ?|globs|{v}
bool_case|b|ignore_case case_insensitive/|Ignore upper and lower case|bool|~
bool_sub|b|submit press_enter/|Press enter afterwards|bool|~
bool_full|b|full_page whole_page/|The whole page|bool|~
bool_open|b|open opened/|True to open|bool|~
bool_open2|b|open_now only_open/|Only those that are open|bool|~
json_text|s|body payload data/|Body of the request as JSON|json_text|with {v}
selector|s|selector element css_selector target/|CSS selector|selector|{v}
image|s|image image_name/|Name of the image|image|from {v}
branch2|s|target into base/|Branch to merge into|branch|into {v}
delim|s|delimiter separator/|Separator|delim|with {v}
equation|s|equation problem/|The equation|equation|{v}
letter|s|variable unknown symbol/|Name of the unknown|letter|for {v}
entity|s|entity_id device device_id target/|Id of the device|entity|{v}
cron|s|cron schedule expression/|Cron expression|cron|at {v}
zodiac|s|sign zodiac_sign/|Sign of the zodiac|zodiac|for {v}
project2|s|second other/|Second one|project|and {v}
http_e|e|method verb http_method/|HTTP method|GET POST PUT DELETE PATCH|with {v}
kube_e|e|resource kind/|Kind of resource|pods services deployments nodes jobs|{v}
code_e|e|language lang/|Programming language|python java c rust go javascript|in {v}
style_e|e|style profile/|Style|google llvm black standard|in {v}
chart_e|e|kind chart_type type/|Kind of chart|bar line pie scatter|as {v}
hard_e|e|difficulty level/|Difficulty|easy medium hard|{v}
"""
VALUES |= {
    "count2": lambda g: number(g.r, 100, 400),
    "snippet": lambda g: snippet(g),
    "snippet2": lambda g: snippet(g),
    "lines": lambda g: "\n".join(snippet(g) if g.r.random() < 0.6 else g.sentence() for _ in range(g.r.randint(1, 4))),
    "globs": lambda g: pick(g.r, ("*.{e}", "**/*.{e}", "{d}/**/*.{e}", "{d}/*.{e}", "test_*.{e}", "{w}*.{e}")).format(
        e=pick(g.r, EXT), d=pick(g.r, DIRS), w=g.word()
    ),
    "json_text": lambda g: json.dumps({g.word(): pick(g.r, (g.word(), g.r.randint(1, 999))) for _ in range(g.r.randint(1, 2))}),
    "selector": lambda g: pick(g.r, ("#{w}", ".{w}-{v}", "button.{w}", "input[name={w}]", "#{w} > a", "div.{v} p", "[data-id={w}]")).format(
        w=g.word(), v=pseudo(g.r)
    ),
    "image": lambda g: (
        pick(g.r, ("nginx", "redis", "postgres", "python", "ubuntu", pseudo(g.r), f"{pseudo(g.r)}/{pseudo(g.r)}"))
        + pick(g.r, ("", ":latest", f":{g.r.randint(1, 20)}", f":{g.r.randint(1, 9)}.{g.r.randint(0, 20)}"))
    ),
    "delim": lambda g: pick(g.r, (";", ",", "|")),
    "equation": lambda g: pick(g.r, ("{a}x + {b} = {c}", "x^2 - {b} = {c}", "{a}y = {c}", "3z - {b} = {a}", "{a}x = {b}x + {c}")).format(
        a=g.r.randint(2, 20), b=g.r.randint(2, 99), c=g.r.randint(2, 99)
    ),
    "letter": lambda g: pick(g.r, "xyzabt"),
    "entity": lambda g: (
        f"{pick(g.r, 'light switch fan sensor climate cover lock camera media_player'.split())}.{pick(g.r, ROOM + [pseudo(g.r)])}"
        + pick(g.r, ("", "", f"_{g.r.randint(1, 9)}", "_main"))
    ),
    "cron": lambda g: f"{g.r.randint(0, 59)} {g.r.randint(0, 23)} * * {pick(g.r, '*12345')}",
    "zodiac": lambda g: pick(g.r, "Aries Taurus Gemini Cancer Leo Virgo Libra Scorpio Sagittarius Capricorn Aquarius Pisces".split()),
    "unit_word": lambda g: pick(
        g.r, "miles kilometers meters feet inches kilograms pounds liters gallons grams ounces celsius fahrenheit hours seconds".split()
    ),
    "address2": VALUES["address"],
    "job": lambda g: pick(g.r, "baker teacher nurse pilot painter lawyer farmer engineer analyst designer driver".split()),
    "subject": lambda g: pick(g.r, CATEGORY["subjects in school"]),
    "square": lambda g: f"{pick(g.r, 'abcdefgh')}{g.r.randint(1, 4)}",
    "square2": lambda g: f"{pick(g.r, 'abcdefgh')}{g.r.randint(5, 8)}",
    "blood": lambda g: pick(g.r, ("A+", "A-", "B+", "B-", "AB+", "AB-", "0+", "0-")),
    "blood2": lambda g: pick(g.r, ("A+", "A-", "B+", "B-", "AB+", "AB-", "0+", "0-")),
    "question": lambda g: f"{pick(g.r, ('What is', 'Why is there', 'How does one explain', 'Who invented'))} {g.words(1, 3).lower()}?",
    "small2": lambda g: number(g.r, 1, 12),
    "length2": VALUES["length"],
    "file2": VALUES["file"],
}
SLOTS |= {s.key: s for s in (Slot(x) for x in SLOT_EXTRA.strip().split("\n"))}

# --------------------------------------------------------------------------------------------------------- composed tools

# nouns | verbs | slots that suit
DOMAIN_TABLE = """
meeting,appointment,interview,workshop,webinar,rehearsal,call,conference,party,training|schedule,create,plan,move,cancel,arrange,confirm,postpone|title date time datetime minutes names owner room text private repeat people notify
message,newsletter,draft,announcement,memo,letter,invitation,reply|send,write,forward,publish,schedule,translate,draft|email emails title text priority files language time channel notify person
file,document,archive,spreadsheet,folder,attachment,log,template|open,upload,download,share,rename,encrypt,compress,export,import,scan,print|file folder format recursive force title handle old new private version
branch,release,pipeline,build,deployment,package,repository,container,script,migration|create,start,stop,build,publish,merge,tag,rollback,trigger,validate|repo branch version env title dry_run force host project command
issue,ticket,bug,task,incident,story,epic,case,complaint|create,update,close,assign,escalate,reopen,comment,resolve,label|title text priority owner status tags code int_id project date urgent
table,record,row,index,query,dataset,column,view,snapshot,backup|create,drop,export,restore,update,insert,filter,sort,count,clean|table field sql int_id limit order format regex host dry_run
invoice,payment,subscription,refund,bill,contract,quote,receipt,budget|create,pay,cancel,issue,approve,send,renew,print,review|code amount money company person email iso until status email repeat
product,article,item,coupon,discount,shipment,parcel,basket,catalog,voucher|add,remove,update,ship,search,list,wrap,compare,price|thing code count budget floor color size_e gift address sort_by limit rating
flight,trip,tour,seat,cruise,ticket,bus,journey,excursion,visa|book,search,reserve,cancel,plan,change,find,check|origin target date iso until people cabin travel budget airport person
lamp,heater,fan,blind,camera,alarm,thermostat,speaker,oven,sprinkler,fridge,television|set,switch,start,stop,configure,test,lock,dim,adjust|room percent degrees minutes mode time enabled color repeat
patient,prescription,vaccine,symptom,diet,treatment,doctor,therapy,blood_test|register,record,schedule,renew,log,check,update|person date time weight age text phone degrees weekday
course,lesson,exam,quiz,student,homework,grade,lecture,class|enroll,create,grade,schedule,assign,publish,open,review|person title date minutes percent language year names file
song,playlist,album,podcast,concert,band,video,movie,clip,episode|play,pause,download,add,search,rate,record,stream,recommend|title person minutes rating language percent instrument year limit
dish,menu,meal,order,table,cake,shopping_list,pantry,drink|cook,order,prepare,plan,add,deliver,list,rate|food people meal items time address rating minutes count
employee,candidate,team,shift,vacation,salary,position,department,training_plan|hire,assign,approve,update,list,rotate,promote,invite|person company project iso until hours weekday amount email
truck,container,pallet,warehouse,delivery,route,driver,crate,package|dispatch,load,track,route,unload,assign,weigh,locate|origin target weight code address date count company
server,database,cluster,network,firewall,disk,service,certificate,process,queue|restart,start,stop,monitor,resize,patch,scan,configure,drain|host port count env mode force command version hours notify
user,account,role,group,permission,session,token,profile,password,key|create,delete,block,unlock,rename,invite,verify,reset,suspend|handle email person until enabled private notify int_id visibility
photo,image,video,poster,banner,logo,drawing,slide,chart,diagram|crop,resize,generate,edit,render,convert,rotate,annotate|file format size_e color title length percent mode
garden,field,greenhouse,tractor,crop,seed,tree,animal,barn|water,plant,harvest,inspect,feed,fertilize,rent|animal room minutes weight date count food length weekday
house,flat,office,apartment,garage,tenant,lease,key,room|rent,clean,inspect,sell,list,lock,paint,furnish|address city zip amount room color people iso until
lead,campaign,deal,survey,report,customer,segment,forecast,dashboard|create,launch,analyze,export,update,generate,share,score|company title month year budget percent format country emails tags
map,place,region,station,stop,weather_map,path,landmark|find,show,locate,mark,search,explore|city country lat lon length travel language limit query
experiment,sample,measurement,sensor,reactor,probe,laser,signal|start,record,calibrate_run,measure,stop,analyze,store|code degrees minutes numbers unit2 num mode title file
match,tournament,player,score,training,league,race,gym|create,register,schedule,record,cancel,list|sport names date city people title hours person age
note,idea,memory,bookmark,quote,journal,page,wiki_page,todo|save,add,find,update,remove,pin,share|title text tags url date query visibility project
word,sentence,text,paragraph,article,essay,speech|translate,correct,count,shorten,rewrite,read,check|text language count mode word
pet,dog,cat,horse,aquarium,vet_visit|feed,register,walk,adopt,vaccinate,wash|animal person age weight date time food minutes
game,character,level,quest,weapon,puzzle|start,save,load,create,join,buy|title handle count mode names int_id percent
alert,policy,audit,threat,vulnerability,backup_job,monitor|create,enable,acknowledge,silence,schedule,run|title priority channel hours host email enabled regex repeat
"""

HELD_DOMAIN_TABLE = """
telescope,orbit,asteroid,observatory_dome|point,track_object,photograph,catalogue|lat lon minutes iso code title degrees time
vineyard,barrel,bottle,tasting|rack,fill,rate_vintage,ferment|year count degrees rating date company percent
yacht,anchor,harbour,regatta|hoist,moor,enter,inspect_hull|title length date city people weight owner
opera,costume,stage,choir|rehearse,stage_show,audition,sew|title person date time minutes color size_e
excavation,artifact,museum,fossil|dig,label_find,donate,exhibit|code iso weight country text year
dentist,crown,implant,denture|polish,fit,extract,xray|person date time int_id amount phone
beehive,honey,queen,swarm|harvest_honey,requeen,catch,relocate|int_id weight date address count mode
locomotive,carriage,signal_box,timetable|couple,decouple,shunt,refuel|code origin target time count company status
tattoo,sketch,needle,ink|draw,refill,touch_up,sterilize|color size_e person date budget text
parachute,jump,altimeter,harness|fold,certify,jump_from,recalibrate|length person iso code weight enabled
"""

ATTRIBUTES = (
    "population height price author owner schedule age address salary birthday area depth speed weight rating manager deadline balance score rank menu "
    "length size director publisher mayor language currency phone website fee tax stock quality humidity warranty version status capacity license "
    "uptime phone_number opening_hours release_date battery_level model color nationality inventor founder headquarters revenue email job_title "
    "blood_pressure calories ingredients side_effects visa_rules time_zone dialing_code postal_code area_code elevation rainfall"
).split()
HELD_ATTRIBUTES = (
    "magnitude half_life thread_count wingspan vintage shoe_size tonnage lifespan melting_point word_count beam_width tide_level".split()
)
ENTITIES = "city country person company project code int_id thing handle animal food host repo symbol flight title file room word email".split()
HELD_ENTITIES = (
    ("bird", "animal"),
    ("ship", "project"),
    ("wine", "title"),
    ("mineral", "word"),
    ("museum", "title"),
    ("athlete", "person"),
    ("comet", "project"),
)

TAIL = (
    "",
    "",
    "",
    " Returns JSON.",
    " Use it only when the user asks for it.",
    " Needs a network connection.",
    " Returns an error if nothing is found.",
)
OPENERS = (
    "",
    "",
    "",
    "",
    "",
    "",
    "Please help. ",
    "Hi! ",
    "Hello, ",
    "Quick question: ",
    "Hey. ",
    "I need your help. ",
    "Next: ",
    "OK. ",
    "Good morning! ",
)
CLOSERS = ("", "", "", "", "", "", "", " Thanks!", " Thank you.", " Please.", " That is all.")
ASIDES = (
    "I am in a hurry.|My boss asked me for this.|I am at work right now.|We talked about it yesterday.|I am not sure how to do it myself.|It is for a friend.|"
    "I have a long day ahead.|Sorry for the trouble.|I tried it by hand and failed.|The others are waiting."
).split("|")
ASK = (
    "{V} {o} {p}.",
    "Please {v} {o} {p}.",
    "Can you {v} {o} {p}?",
    "I want to {v} {o} {p}.",
    "I would like to {v} {o} {p}.",
    "Could you please {v} {o} {p}?",
    "We need to {v} {o} {p}.",
    "{V} {o} {p}",
    "I need you to {v} {o} {p}.",
    "Would you {v} {o} {p}?",
    "Let us {v} {o} {p}.",
    "Help me {v} {o} {p}.",
    "Go ahead and {v} {o} {p}.",
)
LIKE_VERB = {
    "get": "get fetch retrieve read lookup show query".split(),
    "find": "find search lookup discover locate".split(),
    "create": "create add make new insert".split(),
    "search": "search find query browse".split(),
    "set": "set change adjust update".split(),
    "list": "list get_all show enumerate".split(),
    "delete": "delete remove erase drop".split(),
    "book": "book reserve".split(),
    "send": "send deliver post".split(),
    "check": "check test verify is".split(),
    "calculate": "calculate compute calc".split(),
    "play": "play start".split(),
    "run": "run execute do".split(),
}


def human(s):
    """The words of an identifier."""
    out = "".join(" " + c.lower() if c.isupper() else c for c in s)
    return " ".join(out.replace("_", " ").replace("-", " ").replace(".", " ").split())


def styled(r, words):
    """A function name of these words in one of the usual styles."""
    k = r.random()
    if k < 0.62:
        return "_".join(words)
    if k < 0.78:
        return words[0] + "".join(w.capitalize() for w in words[1:])
    if k < 0.84:
        return "".join(w.capitalize() for w in words)
    if k < 0.90:
        return "-".join(words)
    if k < 0.95 and len(words) > 1:
        return words[-1] + "." + "_".join(words[:-1])
    return pick(r, ("api", "tool", "do", "my", "user", "app", "mcp", "v2", "svc")) + "_" + "_".join(words)


def opaque(r):
    return pick(r, ("fn_{n}", "tool_{n}", "{p}", "{p}_{q}", "action{n}", "x{h}", "f_{p}")).format(
        n=r.randint(1, 99), p=pseudo(r, 2), q=pseudo(r, 2), h="".join(pick(r, HEX) for _ in range(4))
    )


def article(text):
    """An article before a vowel gets its n."""
    w = text.split(" ")
    return " ".join(x + "n" if x in ("a", "A") and n[:1] in tuple("aeiou") else x for x, n in zip(w, w[1:] + [""]))


AFFIX = "input target user new my main source given wanted chosen first item default out param requested client final raw local".split()


def odd(g):
    """A name that tells nothing: the description has to be read."""
    r = g.r
    k = r.random()
    if k < 0.35:
        return g.words(1, 1).lower()
    if k < 0.7:
        return f"{g.words(1, 1).lower()}_{g.words(1, 1).lower()}"
    return pick(
        r,
        (pseudo(r, 2), f"{pseudo(r, 1)}_{g.word()}", f"field_{r.randint(1, 9)}", f"arg{r.randint(1, 5)}", f"{pick(r, 'pqxyzuvw')}{r.randint(1, 9)}"),
    )


class Param:
    def __init__(self, g, slot, name=None, required=True, strange=0.32):
        r = g.r
        self.slot, self.required, self.odd = slot, required, False
        names = slot.held if g.held and slot.held else slot.train
        self.name = name or pick(r, names)
        self.desc = pick(r, slot.descs)
        k = r.random()
        if not g.held and r.random() < strange:
            if r.random() < 0.5:
                self.name, self.odd = identifier(odd(g)), True
                return self.choose(r)
            w = pick(r, AFFIX) if r.random() < 0.5 else identifier(g.words(1, 1).lower())
            self.name = f"{w}_{self.name}" if r.random() < 0.6 else f"{self.name}_{w}"
        if k < 0.12:
            self.desc = f"{pick(r, ('The', 'Desired', 'Value of the'))} {human(self.name)}"
        elif k < 0.2:
            self.desc = ""
        self.choose(r)

    def choose(self, r):
        slot = self.slot
        self.choices = None
        if slot.type == "e":
            n = len(slot.choices)
            self.choices = slot.choices if r.random() < 0.6 else r.sample(slot.choices, r.randint(2, n))

    def schema(self, g, style):
        r = g.r
        p = {"type": TYPE[self.slot.type]}
        if self.desc and (style != 1 or self.odd):
            p["description"] = self.desc
        if self.choices:
            p["enum"] = list(self.choices)
        if self.slot.type in "SI":
            p["items"] = {"type": "string" if self.slot.type == "S" else "integer"}
        if style == 2:
            p["title"] = human(self.name).title()
        if style == 3 and "description" in p:
            p = {"description": p.pop("description"), **p}
        if not self.required and self.slot.type in "ine" and r.random() < 0.2:
            p["default"] = pick(r, self.choices) if self.choices else r.choice((0, 1, 5, 10))
        if self.slot.type in "in" and r.random() < 0.06:
            p["minimum"] = 0
        return p


class Group:
    """An object that holds other parameters."""

    def __init__(self, name, params):
        self.name, self.params, self.required = name, params, True

    def schema(self, g, style):
        return {"type": "object", "properties": {p.name: p.schema(g, style) for p in self.params}}


def quoted(r, text):
    return pick(r, ('"{}"', "'{}'", "`{}`", "“{}”")).format(text)


def fits(value, text):
    """A phrase with quotation marks around a value that has some itself reads badly."""
    return not ('"' in text and isinstance(value, str) and '"' in value)


class Tool:
    """params: Param or Group. frames: requests with {param}; ask(g, values): another way to write one."""

    def __init__(self, g, fn, desc, params, result=None):
        r = g.r
        self.fn, self.desc, self.params, self.result = fn, desc, params, result
        self.verb = self.noun = self.frames = self.group = self.domain = None
        style = r.choice((0, 0, 0, 0, 1, 2, 3))
        props = {p.name: p.schema(g, style) for p in params}
        required = [p.name for p in params if p.required]
        body = {"type": "object", "properties": props}
        if required or r.random() < 0.6:
            body["required"] = required
        if r.random() < 0.12:
            body["additionalProperties"] = False
        f = {"name": fn, "description": desc, "parameters": body}
        if not desc:
            del f["description"]
        if not params and r.random() < 0.3:
            f["parameters"] = {"type": "object", "properties": {}}
        if style == 3 and desc:
            f = {"description": f.pop("description"), **f}
        if r.random() < 0.06:
            f["strict"] = True
        self.schema = {"type": "function", "function": f}

    def flat(self):
        return [q for p in self.params for q in (p.params if isinstance(p, Group) else [p])]

    def arguments(self, values):
        """Arguments in the order of the schema, of the values that were drawn."""
        out = {}
        for p in self.params:
            if isinstance(p, Group):
                inner = {q.name: values[q][0] for q in p.params if q in values}
                if inner:
                    out[p.name] = inner
            elif p in values:
                out[p.name] = values[p][0]
        return out

    def call(self, g):
        """(arguments, request)"""
        for _ in range(20):
            values, text = self.framed(g) if self.frames and g.r.random() < 0.9 else self.asked(g)
            if text:
                break
        r = g.r
        if r.random() < 0.06:
            text = f"{pick(r, ASIDES)} {text}" if r.random() < 0.6 else f"{text} {pick(r, ASIDES)}"
        return self.arguments(values), text

    def framed(self, g):
        r = g.r
        f = pick(r, self.frames)
        by = {p.name0: p for p in self.flat()}
        values = {}
        for key, p in by.items():
            if "{" + key + "}" not in f and "{" + key + "?" not in f:
                continue
            v, t = p.slot.draw(g, p.choices)
            if t is not None and not fits(v, f):
                return None, None
            values[p] = (v, t)
            while "{" + key + "?" in f:
                i = f.index("{" + key + "?")
                j = f.index("}", i)
                yes, no = f[i + len(key) + 2 : j].split(":")
                f = f[:i] + (yes if v else no) + f[j + 1 :]
            f = f.replace("{" + key + "}", t or "")
        if any(p.required and p not in values for p in by.values()):
            return None, None
        return values, (f if r.random() < 0.9 else f[0].lower() + f[1:]) if f[0].isalpha() else f

    def asked(self, g):
        """A request that is composed: phrases in running text, or parameters by their names."""
        r = g.r
        used = [p for p in self.flat() if p.required or r.random() < 0.5]
        values = {p: p.slot.draw(g, p.choices) for p in used}
        if not self.verb or r.random() < 0.10:
            return values, self.direct(g, values)
        k = r.random()
        if k < 0.60:
            return values, self.running(g, values)
        return values, self.labelled(g, values)

    def label(self, r, p):
        s = human(p.name if r.random() < 0.6 else pick(r, p.slot.train))
        return s if r.random() < 0.95 else p.name

    def shown(self, r, p, v, t):
        if p.slot.type == "b":
            return pick(r, ("yes", "true", "on") if v else ("no", "false", "off"))
        return quoted(r, t) if p.slot.type == "s" and r.random() < 0.25 and not any(c in t for c in "\"'`“”") else t

    def direct(self, g, values):
        """The function is named, or only its purpose."""
        r = g.r
        parts = [f"{self.label(r, p)}{pick(r, (' ', ': ', '=', ' = '))}{self.shown(r, p, *x)}" for p, x in values.items()]
        name = self.fn if r.random() < 0.6 else human(self.fn)
        head = pick(r, ("Call {f}", "Use {f}", "Use the tool {f}", "Run {f}", "Please call {f}", "{f}")).format(f=name)
        return (
            head + (pick(r, (" with ", ": ", ", ")) + (joined(parts) if r.random() < 0.6 else ", ".join(parts)) if parts else "") + pick(r, (".", ""))
        )

    def running(self, g, values):
        r = g.r
        parts, done = [], set()
        order = list(values)
        if r.random() < 0.6:
            r.shuffle(order)
        at = {p.slot.key: p for p in order}
        for p in order:
            if p in done:
                continue
            pair = next((x for x in PAIRS if p.slot.key in x and all(k in at for k in x)), None)
            for q in [at[k] for k in pair] if pair else [p]:
                done.add(q)
                v, t = values[q]
                phrase = pick(r, q.slot.phrases)
                if q.slot.type == "b":
                    phrase = phrase.split("~")[0 if v else 1]
                if not fits(v, phrase):
                    phrase = phrase.replace('"', "")
                parts.append(phrase.replace("{v}", t or ""))
        # what begins with a mark or runs to the end of the sentence goes last
        parts.sort(key=lambda s: s.startswith(("and ", "saying", "that says", "with this text", ":", "without", "for real")))
        noun = human(self.noun)
        o = pick(r, ("a {n}", "the {n}", "my {n}", "{n}", "the {n}", "this {n}")).format(n=noun)
        o = article(o)
        tails = " ".join(parts).replace(" ,", ",").replace(" :", ":")
        verb = human(self.verb)
        if r.random() < 0.08 and len(parts) > 1 and not any(p.startswith((":", ",", "and")) for p in parts):
            text = f"{tails[0].upper() + tails[1:]}, please {verb} {o}."
        else:
            text = pick(r, ASK).format(V=verb.capitalize(), v=verb, o=o, p="\0").replace("\0", tails).replace(" .", ".").replace(" ?", "?")
        return text

    def labelled(self, g, values):
        r = g.r
        noun, verb = human(self.noun), human(self.verb)
        pairs = [(self.label(r, p), self.shown(r, p, *x)) for p, x in values.items()]
        head = pick(r, ("{V} a {n}", "{V} the {n}", "Please {v} a {n}", "Can you {v} the {n}", "I want to {v} a {n}", "{V} {n}"))
        head = article(head.format(V=verb.capitalize(), v=verb, n=noun))
        if not pairs:
            return head + "."
        k = r.random()
        if k < 0.35:
            form = pick(r, ("{l} {v}", "{l} {v}", "the {l} {v}", "{v} as {l}"))
            return f"{head} with " + joined([form.format(l=a, v="\0").replace("\0", b) for a, b in pairs]) + "."
        if k < 0.6:
            form = pick(r, ("{l}: {v}", "{l} = {v}", "{l}={v}", "{l} is {v}"))
            return head + pick(r, (": ", ". ", ", ")) + pick(r, (", ", "; ", ", ")).join(form.format(l=a, v="\0").replace("\0", b) for a, b in pairs)
        if k < 0.75:
            return head + ":\n" + "\n".join(f"{pick(r, ('- ', '', '* '))}{a}: {b}" for a, b in pairs)
        out = [pick(r, ("The {l} is {v}.", "The {l} should be {v}.", "Set the {l} to {v}.", "Use {v} as the {l}.", "{L}: {v}.")) for _ in pairs]
        return f"{head}. " + " ".join(f.format(l=a, L=a.capitalize(), v="\0").replace("\0", b) for f, (a, b) in zip(out, pairs))

    def answered(self, g):
        """(result as the tool gives it, the answer to the user)"""
        r = g.r
        noun = human(self.noun or self.fn)
        if r.random() < 0.08:
            e = pick(
                r, (f"{noun} not found", "permission denied", "timeout", "service unavailable", f"unknown {noun}", "invalid value", "quota exceeded")
            )
            return json.dumps({"error": e}), f"The call failed: {e}."
        if not self.result:
            d = pick(
                r,
                (
                    {"status": "ok"},
                    {"success": True},
                    {"status": "ok", "id": code(r)},
                    {"result": "done"},
                    {"status": "ok", "number": g.r.randint(1, 9999)},
                ),
            )
            more = [f" The {k} is {v}." for k, v in d.items() if k in ("id", "number")]
            return json.dumps(d), "Done." + "".join(more)
        d = {}
        for key, value in self.result:
            v = VALUES[value](g)
            d[key] = v
        if len(d) == 1 and r.random() < 0.25:
            v = next(iter(d.values()))
            if not isinstance(v, bool):
                return str(v), f"The {human(next(iter(d)))} {be(next(iter(d)))} {v}."
        if r.random() < 0.1:
            rows = [d] + [{k: VALUES[v](g) for k, v in self.result} for _ in range(r.randint(1, 2))]
            each = (
                joined([", ".join(f"{human(k)} {say(v)}" for k, v in x.items()) for x in rows])
                if len(d) == 1
                else "; ".join(", ".join(f"{human(k)} {say(v)}" for k, v in x.items()) for x in rows)
            )
            return json.dumps(rows), f"I found {len(rows)} results: {each}."
        told = joined([f"the {human(k)} {be(k)} {say(v)}" for k, v in d.items()])
        return json.dumps(d, ensure_ascii=False), told[0].upper() + told[1:] + "."


def be(key):
    return "are" if key.endswith("s") and not key.endswith(("ss", "us", "is", "ms")) else "is"


def say(v):
    return {True: "yes", False: "no"}[v] if isinstance(v, bool) else str(v)


def read_table(text):
    out = []
    for line in text.strip().split("\n"):
        fn, desc, params, frames, result = line.split("|")
        ps = [(p.rstrip("?").split(":")[0], p.rstrip("?").split(":")[1], not p.endswith("?")) for p in params.split()]
        out.append((fn, desc, ps, frames.replace("¶", "\n").split(";"), [tuple(x.split(":")) for x in result.split()]))
    return out


BY_HAND, HELD_BY_HAND = read_table(TOOL_TABLE), read_table(HELD_TABLE)
DOMAINS, HELD_DOMAINS = (
    [(n.split(","), v.split(","), [s for s in t.split() if s in SLOTS]) for n, v, t in (x.split("|") for x in table.strip().split("\n"))]
    for table in (DOMAIN_TABLE, HELD_DOMAIN_TABLE)
)


def by_hand(g, entry=None):
    r = g.r
    fn, desc, params, frames, result = entry or pick(r, HELD_BY_HAND if g.held else BY_HAND)
    own = g.held or r.random() < 0.45  # under its own name
    ps, taken = [], set()
    for key, slot, required in params:
        s = SLOTS[slot]
        p = Param(g, s, key if own or r.random() < 0.5 else pick(r, s.train), required, 0.0 if own else 0.3)
        if p.odd:
            p.desc = human(key).capitalize()
        if p.name in taken:
            p.name = key if key not in taken else f"{key}_{len(taken)}"
        p.name0 = key
        if own and r.random() < 0.5:
            p.desc = human(key).capitalize()
        taken.add(p.name)
        ps.append(p)
    name = fn
    if not own:
        words = fn.split("_")
        if words[0] in LIKE_VERB:
            words = pick(r, LIKE_VERB[words[0]]).split("_") + words[1:]
        if r.random() < 0.15:
            words = [*words, identifier(g.words(1, 1).lower())] if r.random() < 0.5 else [identifier(g.words(1, 1).lower()), *words]
        name = styled(r, words) if r.random() < 0.92 else opaque(r)
        k = r.random()
        if k < 0.12:
            desc = f"Use this to {desc[0].lower() + desc[1:]}" if desc.split()[0] in STARTS else f"This tool is for: {desc[0].lower() + desc[1:]}"
        elif k < 0.2:
            desc = f"{human(fn).capitalize()}."
    desc += ("" if desc.endswith(".") else pick(r, ("", ".", ".", "."))) + (pick(r, TAIL) if desc.endswith(".") else "")
    t = Tool(g, name, desc, ps, result)
    t.frames, t.noun = frames, " ".join(fn.split("_")[1:]) or fn
    t.group = fn
    return t


IMPERATIVE = (
    "get search download add multiply divide evaluate check compute sort flip send post call set mark find schedule write delete move read create run commit "
    "switch open list show restart ping test deploy change look translate detect make transfer pay rent order record book dim lock put use return register "
    "give assign close generate convert pack encode store save ask"
).split()
STARTS = {w.capitalize() for w in IMPERATIVE}


def choose_slots(r, keys, n):
    out, used = [], set()
    for key in r.sample(keys, len(keys)):
        clash = {i for i, c in enumerate(CLASH) if key in c}
        pair = next((x for x in PAIRS if key in x), None)
        if key in out or clash & used:
            continue
        if pair and all(k in keys for k in pair) and len(out) + 2 <= n:
            out += [k for k in pair if k not in out]
            used |= {i for k in pair for i, c in enumerate(CLASH) if k in c}
        else:
            out.append(key)
            used |= clash
        if len(out) >= n:
            break
    return out


def composed(g, like=None):
    """An action: verb, noun and some slots. like: a tool of which this one is a sibling (same noun, or same verb)."""
    r = g.r
    nouns, verbs, keys = like.domain if like else pick(r, HELD_DOMAINS if g.held else DOMAINS)
    noun, verb = pick(r, nouns), pick(r, verbs)
    if like:
        if r.random() < 0.6:
            noun = like.noun
            verb = pick(r, [v for v in verbs if v != like.verb])
        else:
            verb = like.verb
            noun = pick(r, [n for n in nouns if n != like.noun])
    if not g.held and not like and r.random() < 0.35:  # any words
        noun, keys = identifier(g.word()), r.sample([s for s in SLOTS if SLOTS[s].held], 12)
        if r.random() < 0.3:
            noun = f"{noun}_{identifier(g.word())}"
        if r.random() < 0.3:
            verb = identifier(g.words(1, 1).lower())
    chosen = choose_slots(r, keys, r.choice((0, 1, 1, 2, 2, 2, 3, 3, 4, 5, 6)))
    ps, taken = [], set()
    for key in chosen:
        p = Param(g, SLOTS[key], None, r.random() < 0.75)
        if p.name in taken:
            p.name = f"{noun}_{p.name}" if f"{noun}_{p.name}" not in taken else f"{p.name}_{len(taken)}"
        elif r.random() < 0.05:
            p.name = f"{noun}_{p.name}"
        if r.random() < 0.15:
            parts = p.name.split("_")
            p.name = parts[0] + "".join(x.capitalize() for x in parts[1:])
        taken.add(p.name)
        ps.append(p)
    params = ps
    if len(ps) >= 3 and r.random() < 0.08:
        k = r.randint(2, len(ps))
        inner, rest = ps[:k], ps[k:]
        name = pick(r, ("details", "options", "data", noun, "filter", "settings", "payload"))
        if name not in taken:
            params = rest + [Group(name, inner)]
    words = [verb, *noun.split("_")]
    order = r.random()
    if order < 0.15:
        words = [*noun.split("_"), verb]
    fn = opaque(r) if r.random() < 0.06 else styled(r, [w for x in words for w in x.split("_")])
    h, v = human(noun), human(verb)
    desc = pick(
        r,
        (
            "{V} a {n}",
            "{V} a {n}.",
            "{V} the given {n}.",
            "Use this to {v} a {n}.",
            "Allows to {v} a {n}.",
            "{V}s a {n} for the user.",
            "{V} {n}",
            "{V} one {n} of the account.",
            "{N} tool: {v}.",
        ),
    ).format(V=v.capitalize(), v=v, n=h, N=h.capitalize())
    desc = article(desc)
    if ps and r.random() < 0.15:
        desc = desc.rstrip(".") + f" by {human(ps[0].name)}."
    if "_" in fn and r.random() < 0.06:
        desc = ""
    if desc.endswith("."):
        desc += pick(r, TAIL)
    t = Tool(g, fn, desc, params)
    t.noun, t.verb, t.group, t.domain = noun, verb, f"{verb}_{noun}", (nouns, verbs, keys)
    return t


ASK_FOR = (
    "What is the {a} of {v}?",
    "Tell me the {a} of {v}.",
    "{A} of {v}?",
    "Do you know the {a} of {v}?",
    "I need the {a} of {v}.",
    "Look up the {a} of {v}.",
    "Please find the {a} of {v}.",
    "Show me the {a} for {v}.",
    "Which {a} does {v} have?",
    "Give me the {a} of {v}, please.",
    "Can you check the {a} of {v}?",
    "What {a} does {v} have?",
    "I wonder what the {a} of {v} is.",
)
GETTERS = "get find lookup fetch query check show read retrieve".split()
EXTRA_SLOTS = "unit2 language format year date limit money iso".split()


def lookup(g, like=None):
    """A getter of an attribute of something, sometimes with a second parameter."""
    r = g.r
    if g.held:
        ent, slot = pick(r, HELD_ENTITIES)
        attr = pick(r, HELD_ATTRIBUTES)
    else:
        ent = slot = pick(r, ENTITIES)
        attr = pick(r, ATTRIBUTES) if r.random() < 0.65 else identifier(g.word())
        if slot in ("code", "int_id", "thing", "word", "title"):
            ent = pick(r, pick(r, DOMAINS)[0])
    if like:
        ent, slot = like.noun, like.params[0].slot.key
    s = SLOTS[slot]
    key = pick(r, (ent, f"{ent}_{pick(r, ('name', 'id'))}", pick(r, s.train), pick(r, s.train), "name", "target", "subject"))
    p = Param(g, s, key, True, 0.2)
    p.desc = pick(r, (p.desc, f"The {human(ent)}", f"Which {human(ent)}", "")) or p.desc
    key = p.name
    ps = [p]
    if r.random() < 0.2:
        q = Param(g, SLOTS[pick(r, EXTRA_SLOTS)], None, r.random() < 0.4)
        if q.name != key:
            ps.append(q)
    words = pick(r, ([pick(r, GETTERS), attr], [pick(r, GETTERS), ent, attr], [ent, attr], [attr, "of", ent], [pick(r, GETTERS), attr, "by", ent]))
    fn = opaque(r) if r.random() < 0.04 else styled(r, [w for x in words for w in x.split("_")])
    h = human(attr)
    desc = pick(
        r,
        (
            "Get the {a} of a {e}",
            "Look up the {a} of a {e}.",
            "{A} of a {e}.",
            "Returns the {a} for the given {e}.",
            "{A} lookup.",
            "Find out the {a} of any {e}.",
        ),
    ).format(a=h, A=h.capitalize(), e=human(ent))
    t = Tool(g, fn, desc, ps, [(attr, pick(r, ("num", "int_id", "city", "person", "word", "count", "title", "date")))])
    t.noun, t.group = ent, attr
    for x in ps:
        x.name0 = x.name
    a = "{" + key + "}"
    frames = []
    for f in ASK_FOR:
        f = f.format(a=h, A=h.capitalize(), v="\0")
        if slot in ("code", "int_id", "file", "host", "word") and r.random() < 0.6:
            f = f.replace("\0", pick(r, (f"{human(ent)} \0", f"the {human(ent)} \0")))
        f = f.replace("\0", a)
        if len(ps) > 1 and (ps[1].required or r.random() < 0.4):
            phrase = pick(r, ps[1].slot.phrases).replace("{v}", "{" + ps[1].name + "}")
            f = f[:-1] + " " + phrase + f[-1]
        frames.append(f)
    t.frames = frames
    return t


def any_tool(g):
    k = g.r.random()
    return by_hand(g) if k < 0.42 else composed(g) if k < 0.8 else lookup(g)


def distinct(t, tools):
    return all(t.fn != o.fn and t.group != o.group and (t.desc != o.desc or not t.desc) for o in tools)


def offer(g, wanted, n):
    """The wanted tools and n others, some of them close to a wanted one."""
    tools = list(wanted)
    for _ in range(n * 4):
        if len(tools) >= n + len(wanted):
            break
        near = pick(g.r, wanted) if wanted and g.r.random() < 0.35 else None
        if near is not None and near.domain and len(near.domain[0]) > 1 and near.noun in near.domain[0]:
            t = composed(g, near)
        elif near is not None and near.frames and near.params and near.noun in ENTITIES and near.group in ATTRIBUTES:
            t = lookup(g, near)
        else:
            t = any_tool(g)
        if distinct(t, tools):
            tools.append(t)
    g.r.shuffle(tools)
    return tools


class Call:
    def __init__(self, tool, g):
        self.tool = tool
        self.args, self.text = tool.call(g)
        self.result, self.answer = tool.answered(g)

    def gold(self):
        return (self.tool.fn, self.args)


def spread(g, tool, n):
    """Calls of one tool that differ in one text parameter, asked for in one sentence; None if it has no such parameter."""
    r = g.r
    if tool.frames:
        by = {p.name0: p for p in tool.flat()}
        choices = [
            (f, k) for f in tool.frames for k, p in by.items() if p.slot.type in "si" and p.slot.key not in ("text", "sql") and "{" + k + "}" in f
        ]
        choices = [(f, k) for f, k in choices if all("{" + q in f or not p.required for q, p in by.items()) and "?" not in f[:-1]]
        if not choices:
            return None
        f, k = pick(r, choices)
        values, many = {}, []
        for key, p in by.items():
            if key != k and "{" + key + "}" in f:
                v, t = p.slot.draw(g, p.choices)
                if t is None or not fits(v, f):
                    return None
                values[p] = (v, t)
                f = f.replace("{" + key + "}", t)
        while len(many) < n:
            v, t = by[k].slot.draw(g)
            if fits(v, f) and v not in [x[0] for x in many] and "," not in t and " and " not in t:
                many.append((v, t))
        text = f.replace("{" + k + "}", joined([t for _, t in many]))
        calls = []
        for v in many:
            c = Call.__new__(Call)
            c.tool, c.text = tool, text
            c.args = tool.arguments({**values, by[k]: v})
            c.result, c.answer = tool.answered(g)
            calls.append(c)
        return calls
    return None


def request(g, tools, n):
    """(calls, text): n = 1, or several calls asked for in one turn."""
    r = g.r
    if n == 1:
        c = Call(pick(r, tools), g)
        return [c], c.text
    first = pick(r, tools)
    if r.random() < 0.3:
        calls = spread(g, first, n)
        if calls:
            return calls, calls[0].text
    calls = [Call(first, g)]
    for _ in range(n * 6):
        if len(calls) >= n:
            break
        c = Call(first if r.random() < 0.4 else pick(r, tools), g)
        if all(c.gold() != o.gold() and c.text != o.text for o in calls):
            calls.append(c)
    texts = [c.text for c in calls]
    k = r.random()
    if k < 0.15:
        return calls, "\n".join(f"{i + 1}. {t}" for i, t in enumerate(texts))
    if k < 0.25:
        return calls, "\n".join(texts)
    mark = pick(r, (" ", " And ", " Also: ", " Then: ", " ", " Also, ", " After that: "))
    return calls, mark.join(t if t[-1] in ".?!" else t + "." for t in texts[:-1]) + mark + texts[-1]
