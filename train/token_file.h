/*
 * Writing files of tokens, as data_files.h reads them.
 */
#ifndef TRAIN_TOKEN_FILE_H
#define TRAIN_TOKEN_FILE_H

#include "data.h"

/* Writes tokens, and then `end` if that is not -1: *.bin in the format of llm.c, for a vocabulary of at most 65536, *.npy as
 * uint16 or, for a larger vocabulary, uint32. The file is there whole or not at all. False, with train_error() set. */
bool token_file_write(const char *path, const data_tokens *tokens, int32_t end, int64_t vocab);

#endif
