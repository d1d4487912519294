/* What a stopped run leaves behind: see loop_stop.h. */
#include "loop_stop.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "error.h"
#include "loop.h"
#include "text.h"

bool loop_stop_save(const char *out, const model *m, const optimizer *o, checkpoint_state *state, const saved_batch *batch,
                    double loss, double norm)
{
    text_buffer reason = {0}, folder = {0}, file = {0};
    text_format(&reason, "%s", train_error());
    text_format(&folder, "%s/%s", out, TRAIN_STOPPED_FOLDER);
    text_format(&file, "%s/%s", folder.bytes, TRAIN_STOPPED_BATCH);
    bool saved = mkdir(out, 0777) == 0 || errno == EEXIST || train_fail("%s: %s", out, strerror(errno));
    saved = saved && checkpoint_save(folder.bytes, m, o, state) &&
            saved_batch_write(file.bytes, batch, state->step + 1, loss, norm);
    if (saved)
        train_fail("%s", reason.bytes);
    text_free(&reason);
    text_free(&folder);
    text_free(&file);
    return saved;
}
