/*
 * Writing files of tokens, as data_files.h reads them.
 */
#ifndef TRAIN_TOKEN_FILE_H
#define TRAIN_TOKEN_FILE_H

#include "data.h"

/* Whether a file of this name can be written; else train_error() is set. */
bool token_file_name(const char *path);

/* Writes tokens, and then `end` if that is not -1: *.bin in llm.c's formats, or *.npy; of 16 bits or, for a vocabulary above
 * 65536, of 32 bits. The file is there whole or not at all. False, with train_error() set. */
bool token_file_write(const char *path, const data_tokens *tokens, int32_t end, int64_t vocab);

#endif
