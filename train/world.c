/*
 * The small world. Line i of a split is a function of (seed, split, i) alone. What belongs to which split is decided by a
 * hash of the content, never by the order of lines: a candidate that belongs to the other split is drawn again.
 */
#include "world.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "random.h"
#include "text.h"

static const char *const people[WORLD_PEOPLE] = {"Ada", "Ben", "Cora", "Dan", "Eva", "Finn", "Gina", "Hugo",
                                                 "Ida", "Jan", "Kim",  "Leo", "Mia", "Nils", "Olga", "Paul"};

static const struct {
    const char *name, *country, *river;
} towns[WORLD_TOWNS] = {{"Bern", "Switzerland", "Aare"}, {"Paris", "France", "Seine"},    {"Rome", "Italy", "Tiber"},
                        {"Vienna", "Austria", "Danube"}, {"Prague", "Czechia", "Vltava"}, {"London", "England", "Thames"},
                        {"Cairo", "Egypt", "Nile"},      {"Porto", "Portugal", "Douro"},  {"Cologne", "Germany", "Rhine"},
                        {"Dublin", "Ireland", "Liffey"}, {"Warsaw", "Poland", "Vistula"}, {"Seville", "Spain", "Guadalquivir"}};

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

static const char *const jobs[] = {"baker",   "nurse",  "pilot",  "farmer", "singer",   "teacher",
                                   "painter", "doctor", "sailor", "judge",  "gardener", "driver"};
static const char *const pets[] = {"cat", "dog", "parrot", "rabbit", "hamster", "goat"};
static const char *const pet_names[] = {"Milo", "Luna", "Rex",  "Bella", "Oscar", "Daisy", "Max",   "Coco",
                                        "Toby", "Ruby", "Jack", "Molly", "Felix", "Nala",  "Rocky", "Lola"};
static const char *const foods[] = {"bread", "soup", "rice", "fish", "cheese", "honey", "pasta", "plums", "beans", "cake"};
static const char *const colours[] = {"red", "blue", "green", "white", "black", "brown"};
static const char *const things[] = {"hat", "cup", "book", "lamp", "coat", "bag", "chair", "kite"};
static const char *const places[] = {"market", "harbour", "station", "castle", "bridge", "garden"};

/* $1, $2, $3 stand for what differs. The first five are about a person, the last two about a town. */
enum { FACT_HOME, FACT_JOB, FACT_PET, FACT_FRIEND, FACT_FOOD, FACT_COUNTRY, FACT_RIVER, FACTS, PHRASINGS = 4 };

static const char *const phrasings[FACTS][PHRASINGS] = {
    [FACT_HOME] = {"$1 lives in $2.", "The home of $1 is in $2.", "$1 has a house in $2.", "Where does $1 live? In $2."},
    [FACT_JOB] = {"$1 is a $2.", "The job of $1 is $2.", "$1 works as a $2.", "What is the job of $1? A $2."},
    [FACT_PET] = {"$1 has a $2 named $3.", "The $2 of $1 is named $3.", "$1 likes to play with the $2 $3.",
                  "What is the name of the $2 of $1? $3."},
    [FACT_FRIEND] = {"$1 is a friend of $2.", "The best friend of $1 is $2.", "$1 likes to visit $2.",
                     "Who is the best friend of $1? $2."},
    [FACT_FOOD] = {"$1 likes to eat $2.", "The favourite food of $1 is $2.", "$1 always buys $2.",
                   "What does $1 like to eat? Some $2."},
    [FACT_COUNTRY] = {"$1 is in $2.", "The country of $1 is $2.", "$1 is a town in $2.", "Where is $1? In $2."},
    [FACT_RIVER] = {"$1 lies on the $2.", "The river of $1 is the $2.", "The water in $1 is the $2.",
                    "Which river flows through $1? The $2."},
};

/* $1 and $5 are people, $2 a colour, $3 a thing, $4 a place. */
static const char *const stories[] = {
    "$1 buys a $2 $3 at the $4 and goes home. What does $1 have? The $2 $3.",
    "$1 finds a $2 $3 near the $4 and takes it home. Who has the $2 $3? $1.",
    "$1 brings a $2 $3 to the $4 as a present for $5. What does $5 get? The $2 $3.",
    "$1 loses a $2 $3 on the way to the $4. After a while $5 finds the $2 $3 of $1.",
};

/* Fills in a template; returns the length. */
static size_t render(const char *template, const char *const *values, char line[WORLD_LINE_MAX])
{
    size_t length = 0;
    for (const char *p = template; *p; ++p) {
        if (*p != '$') {
            line[length++] = *p;
            continue;
        }
        const char *value = values[*++p - '1'];
        memcpy(line + length, value, strlen(value));
        length += strlen(value);
    }
    line[length] = 0;
    return length;
}

void world_init(world *w, uint64_t seed)
{
    random_state random = {random_with(seed, 1)};
    w->seed = seed;
    for (int i = 0; i < WORLD_PEOPLE; ++i) {
        world_person *person = &w->people[i];
        person->home = (int)random_below(&random, WORLD_TOWNS);
        person->job = (int)random_below(&random, (uint64_t)COUNT(jobs));
        person->pet = (int)random_below(&random, (uint64_t)COUNT(pets));
        person->pet_name = (int)random_below(&random, (uint64_t)COUNT(pet_names));
        person->friend_of = (int)(((uint64_t)i + 1 + random_below(&random, WORLD_PEOPLE - 1)) % WORLD_PEOPLE);
        person->food = (int)random_below(&random, (uint64_t)COUNT(foods));
    }
}

static void fact_values(const world *w, int fact, int subject, const char *values[3])
{
    if (fact == FACT_COUNTRY || fact == FACT_RIVER) {
        values[0] = towns[subject].name;
        values[1] = fact == FACT_COUNTRY ? towns[subject].country : towns[subject].river;
        return;
    }
    const world_person *person = &w->people[subject];
    values[0] = people[subject];
    values[1] = fact == FACT_HOME     ? towns[person->home].name
                : fact == FACT_JOB    ? jobs[person->job]
                : fact == FACT_PET    ? pets[person->pet]
                : fact == FACT_FRIEND ? people[person->friend_of]
                                      : foods[person->food];
    values[2] = pet_names[person->pet_name];
}

static size_t fact_line(const world *w, world_split split, random_state *random, char *line)
{
    const char *values[3] = {"", "", ""};
    int fact = (int)random_below(random, FACTS);
    bool town = fact == FACT_COUNTRY || fact == FACT_RIVER;
    int subject = (int)random_below(random, town ? WORLD_TOWNS : WORLD_PEOPLE);
    int held_out = (int)(random_with(random_with(w->seed, (uint64_t)fact), (uint64_t)subject + 100) % PHRASINGS);
    int phrasing = split == WORLD_VAL ? held_out : (held_out + 1 + (int)random_below(random, PHRASINGS - 1)) % PHRASINGS;
    fact_values(w, fact, subject, values);
    return render(phrasings[fact][phrasing], values, line);
}

static const char *draw(random_state *random, const char *const *list, int count)
{
    return list[random_below(random, (uint64_t)count)];
}

static uint64_t hash_text(uint64_t hash, const char *line, size_t length)
{
    for (size_t i = 0; i < length; ++i)
        hash = random_with(hash, (unsigned char)line[i]);
    return hash;
}

/* One story in eight is kept for validation. */
static size_t story_line(const world *w, world_split split, random_state *random, char *line)
{
    for (;;) {
        const char *values[5] = {
            draw(random, people, WORLD_PEOPLE),  draw(random, colours, COUNT(colours)), draw(random, things, COUNT(things)),
            draw(random, places, COUNT(places)), draw(random, people, WORLD_PEOPLE),
        };
        if (values[0] == values[4])
            continue;
        size_t length = render(draw(random, stories, COUNT(stories)), values, line);
        if ((hash_text(w->seed, line, length) % 8 == 0) == (split == WORLD_VAL))
            return length;
    }
}

static size_t sum_line(const world *w, world_split split, random_state *random, char *line)
{
    for (;;) {
        int a = 10 + (int)random_below(random, 40), b = 10 + (int)random_below(random, 40);
        int low = a < b ? a : b, high = a < b ? b : a;
        bool held_out = random_with(random_with(w->seed, 7), (uint64_t)(low * 100 + high)) % 8 == 0;
        if (held_out == (split == WORLD_VAL))
            return (size_t)snprintf(line, WORLD_LINE_MAX, "%d+%d=%d", a, b, a + b);
    }
}

size_t world_line(const world *w, world_split split, uint64_t index, char line[WORLD_LINE_MAX])
{
    random_state random = {random_with(random_with(w->seed, 2 + (uint64_t)split), index)};
    uint64_t sort = random_below(&random, 100);
    if (sort < 30)
        return fact_line(w, split, &random, line);
    return sort < 60 ? story_line(w, split, &random, line) : sum_line(w, split, &random, line);
}

char *world_text(uint64_t seed, world_split split, int64_t lines, size_t *size)
{
    world w;
    text_buffer corpus = {0};
    char line[WORLD_LINE_MAX];
    world_init(&w, seed);
    text_bytes(&corpus, "", 0);
    for (int64_t i = 0; i < lines; ++i) {
        text_bytes(&corpus, line, world_line(&w, split, (uint64_t)i, line));
        text_bytes(&corpus, "\n", 1);
    }
    *size = corpus.length;
    return corpus.bytes;
}
