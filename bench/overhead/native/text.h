// Growing buffers, and text that looks like code in JSON: escapes, line breaks, the odd non-ASCII letter.
#pragma once
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static u64 random_state;
static inline u64 next_random(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static const char* WORDS[] = {
    "self.",    "return ", "async def ", "request",         "worker ",     "cache_aware", "(prefix, ", "tokens)",
    "= await ", "router.", "if not ",    "for i in range(", "import ",     "class ",      "the ",      "a ",
    "test ",    "error: ", "expected ",  "value ",          "src/main.py", "line ",       "42",        "function ",
    "and ",     "then ",   "handle_",    "buffer[",         "] += ",       "0x1f",        "None",      "True",
    "{}",       "path ",   "file ",      "node_",           "match ",      "except ",     "raise ",    "ValueError(",
    "json.",    "dumps(",  "loads(",     "session",         "state ",      "update ",     "thread ",   "lock ",
    "queue.",   "get() ",  "put(",       "assert ",         "len(",        "items",       " == ",      " != ",
    " < ",      " >= ",    "\\t",        "\\\"key\\\"",     "const ",      "let ",        "import os", "\\u00e9"};
typedef struct {
    char* b;
    size_t n, cap;
} Text;

static void reserve(Text* b, size_t k) {
    if (b->n + k > b->cap) {
        b->cap = (b->n + k) * 3 / 2;
        b->b = realloc(b->b, b->cap);
    }
}

static void append(Text* b, const char* s) {
    size_t k = strlen(s);
    reserve(b, k + 1);
    memcpy(b->b + b->n, s, k);
    b->n += k;
}

static void append_words(Text* b, size_t k) {
    reserve(b, k + 64);
    size_t e = b->n + k;
    int w = 0;
    while (b->n < e) {
        const char* s = WORDS[next_random() & 63];
        size_t l = strlen(s);
        memcpy(b->b + b->n, s, l);
        b->n += l;
        if (++w == 11) {
            w = 0;
            memcpy(b->b + b->n, "\\n", 2);
            b->n += 2;
        }
    }
}
