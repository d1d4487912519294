/*
 * The files that tokens come from; for data.c. A piece is one file, or text that was made: a run of numbers of 1, 2, 4 or 8
 * bytes, each a token.
 *
 *     text     bytes; with a tokenizer.json it is encoded when it is opened, and its tokens are kept
 *     *.bin    16-bit tokens as nanoGPT has them, without a header; or one of llm.c's two formats
 *     *.npy    one dimension of uint16, uint32, int32 or int64, little-endian, format 1 to 3
 *
 * Files are mapped, not read.
 */
#ifndef TRAIN_DATA_FILES_H
#define TRAIN_DATA_FILES_H

#include "tokenizer.h"

/* llm.c: a header of 256 int32, which begins with magic, version and how many tokens follow it. */
typedef struct bin_format {
    int32_t magic, version;
    int width;
} bin_format;
enum { BIN_FORMATS = 2, BIN_NUMBERS = 256 };
extern const bin_format bin_formats[BIN_FORMATS]; /* of 16 bits, of 32 bits */

typedef struct piece {
    char *name;
    void *map; /* of a file; NULL if there is none */
    size_t map_size;
    void *owned; /* made here, or NULL */
    const unsigned char *bytes;
    int64_t tokens; /* without the end token */
    int width;      /* bytes of a token */
    bool is_signed;
    bool text;     /* not tokens from the beginning */
    int32_t end;   /* a token after the others, or -1 */
    int64_t start; /* of its first token in the sequence; set by the owner */
    int64_t most, most_at;
} piece;

typedef struct piece_list {
    piece *pieces;
    int64_t count;
    size_t room;
} piece_list;

/* Appends what a path names: a file, a folder's *.txt or *.bin and *.npy, or the files that a pattern with * ? [ matches, in
 * the order of their names. Text of a folder or a pattern ends with `end`, if that is not -1. False, with train_error() set. */
bool pieces_open(piece_list *list, const char *path, tokenizer *t, int32_t end);
/* Appends text that the list owns from now on. */
bool pieces_add_text(piece_list *list, const char *name, char *text, size_t size, tokenizer *t);
void pieces_close(piece_list *list);

/* Token `index` of a piece, below its `tokens`. */
int64_t piece_token(const piece *p, int64_t index);

#endif
