/* TensorBoard's event files: see events.h. */
#include "events.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "error.h"
#include "text.h"

struct event_writer {
    FILE *file;
    char *path;
};

uint32_t events_crc(const void *bytes, size_t count)
{
    uint32_t crc = ~0u;
    for (size_t i = 0; i < count; ++i) {
        crc ^= ((const unsigned char *)bytes)[i];
        for (int bit = 0; bit < 8; ++bit)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

/* ----------------------------------------------------------------------------------------------------- protocol buffers */

typedef enum wire { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 } wire;

static void put_little(text_buffer *t, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; ++i) {
        const unsigned char byte = (unsigned char)(value >> 8 * i);
        text_bytes(t, &byte, 1);
    }
}

static void put_varint(text_buffer *t, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        put_little(t, (value & 0x7f) | 0x80, 1);
    put_little(t, value, 1);
}

static void put_key(text_buffer *t, int field, wire type)
{
    put_varint(t, (uint64_t)field << 3 | type);
}

static void put_bytes(text_buffer *t, int field, const void *bytes, size_t count)
{
    put_key(t, field, WIRE_BYTES);
    put_varint(t, count);
    text_bytes(t, bytes, count);
}

static void put_double(text_buffer *t, int field, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_key(t, field, WIRE_64);
    put_little(t, bits, 8);
}

static void put_float(text_buffer *t, int field, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_key(t, field, WIRE_32);
    put_little(t, bits, 4);
}

static double wall_time(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* -------------------------------------------------------------------------------------------------------------- records */

static void put_check(text_buffer *t, const void *bytes, size_t count)
{
    const uint32_t crc = events_crc(bytes, count);
    put_little(t, (crc >> 15 | crc << 17) + 0xa282ead8u, 4);
}

static bool write_record(event_writer *w, const text_buffer *event)
{
    text_buffer record = {0};
    put_little(&record, event->length, 8);
    put_check(&record, record.bytes, record.length);
    text_bytes(&record, event->bytes, event->length);
    put_check(&record, event->bytes, event->length);
    const bool written = fwrite(record.bytes, record.length, 1, w->file) == 1 && fflush(w->file) == 0;
    const int reason = errno;
    text_free(&record);
    return written || train_fail_as(TRAIN_ERROR_WORK, "%s: %s", w->path, strerror(reason));
}

static bool write_version(event_writer *w)
{
    static const char version[] = "brain.Event:2";
    text_buffer event = {0};
    put_double(&event, 1, wall_time());
    put_bytes(&event, 3, version, sizeof version - 1);
    const bool written = write_record(w, &event);
    text_free(&event);
    return written;
}

event_writer *events_open(const char *folder)
{
    char host[256] = "host";
    text_buffer path = {0};
    gethostname(host, sizeof host - 1);
    text_format(&path, "%s/events.out.tfevents.%lld.%s.%ld.fattn", folder, (long long)time(NULL), host, (long)getpid());
    event_writer *w = text_alloc(sizeof *w);
    *w = (event_writer){.path = path.bytes};
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        train_fail("%s: %s", folder, strerror(errno));
    else if (!(w->file = fopen(path.bytes, "wb")))
        train_fail("%s: %s", path.bytes, strerror(errno));
    else if (write_version(w))
        return w;
    events_close(w);
    return NULL;
}

bool events_write(event_writer *w, int64_t step, const event_scalar *scalars, int count)
{
    text_buffer event = {0}, summary = {0};
    for (int i = 0; i < count; ++i) {
        text_buffer value = {0};
        put_bytes(&value, 1, scalars[i].tag, strlen(scalars[i].tag));
        put_float(&value, 2, (float)scalars[i].value);
        put_bytes(&summary, 1, value.bytes, value.length);
        text_free(&value);
    }
    put_double(&event, 1, wall_time());
    put_key(&event, 2, WIRE_VARINT);
    put_varint(&event, (uint64_t)step);
    put_bytes(&event, 5, summary.bytes, summary.length);
    const bool written = write_record(w, &event);
    text_free(&summary);
    text_free(&event);
    return written;
}

bool events_close(event_writer *w)
{
    if (!w)
        return true;
    const bool closed = !w->file || fclose(w->file) == 0 || train_fail_as(TRAIN_ERROR_WORK, "%s: %s", w->path, strerror(errno));
    free(w->path);
    free(w);
    return closed;
}
