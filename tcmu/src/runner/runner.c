/*
 * The functions that a plug-in of tcmu-runner expects in its process, and calls of its own functions.
 *
 * The structures are those of the plug-in interface of tcmu-runner 1.5 and 1.6 (tcmu-runner.h, libtcmu_common.h). One
 * process has one plug-in and one device, and executes one command at a time.
 */

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

/* Results of a call: TCMU_STS_OK, TCMU_STS_NOT_HANDLED. */
enum { OK = 0, NOT_HANDLED = -1 };
enum { SENSE_BYTES = 96, LINE_BYTES = 1024 };

struct tcmu_device {
    char *config;
    void *private;
    uint64_t bytes;
    uint32_t block_bytes;
    uint32_t max_transfer, max_unmap, unmap_granularity, unmap_alignment, copy_bytes;
    bool has_write_cache, is_solid_state, has_unmap, is_write_protected;
};

/* struct tcmulib_cmd */
struct scsi_command {
    uint16_t id;
    uint8_t *cdb;
    struct iovec *pieces;
    size_t piece_count;
    uint8_t sense[SENSE_BYTES];
    void *private;
};

/* struct tcmur_cmd */
struct command {
    struct scsi_command *scsi;
    struct iovec *pieces;
    size_t piece_count;
    void *piece_base;
    void *state;
    size_t requested;
    void *list[2];
    struct timespec begun;
    bool has_timed_out;
    void (*done)(struct tcmu_device *, struct command *, int);
};

/* struct tcmur_handler */
struct handler {
    const char *name, *subtype, *config_description;
    void *opaque;
    bool (*check_config)(const char *, char **);
    int (*reconfigure)(struct tcmu_device *, void *);
    int (*open)(struct tcmu_device *, bool);
    void (*close)(struct tcmu_device *);
    int threads;
    int (*handle)(struct tcmu_device *, struct command *);
    int (*read)(struct tcmu_device *, struct command *, struct iovec *, size_t, size_t, off_t);
    int (*write)(struct tcmu_device *, struct command *, struct iovec *, size_t, size_t, off_t);
    int (*flush)(struct tcmu_device *, struct command *);
    int (*unmap)(struct tcmu_device *, struct command *, uint64_t, uint64_t);
    int (*write_same)(struct tcmu_device *, struct command *, uint64_t, uint64_t, struct iovec *, size_t);
    int (*compare_and_write)(struct tcmu_device *, struct command *, uint64_t, uint64_t, struct iovec *, size_t);
    int (*report_event)(struct tcmu_device *);
    int (*lock)(struct tcmu_device *, uint16_t);
    int (*unlock)(struct tcmu_device *);
    int (*get_lock_tag)(struct tcmu_device *, uint16_t *);
    int (*get_lock_state)(struct tcmu_device *);
    bool is_external;
    bool (*update_log_folder)(void);
    /* Version 1.5.3 and later. */
    int (*initialize)(void);
    void (*destroy)(void);
};

static struct handler *registered;

/* The command in progress, which an asynchronous plug-in ends from any thread. */
static struct call {
    struct command command;
    struct scsi_command scsi;
    uint8_t cdb[16];
    struct iovec piece;
    int result;
    bool has_ended;
} call;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;

/* ------------------------------------------------------------------------------------------------ for plug-ins */

int tcmur_register_handler(struct handler *handler)
{
    if (registered)
        return -EBUSY;
    registered = handler;
    return 0;
}

bool tcmur_unregister_handler(struct handler *handler)
{
    bool was_registered = registered == handler;
    if (was_registered)
        registered = NULL;
    return was_registered;
}

void tcmur_cmd_complete(struct tcmu_device *device, void *data, int result)
{
    (void)device;
    pthread_mutex_lock(&lock);
    /* A second answer, or one to another command, is a defect of the plug-in, and has no effect. */
    if (data == &call.command && !call.has_ended) {
        call.result = result;
        call.has_ended = true;
        pthread_cond_signal(&ended);
    }
    pthread_mutex_unlock(&lock);
}

void *tcmur_dev_get_private(struct tcmu_device *device) { return device->private; }
void tcmur_dev_set_private(struct tcmu_device *device, void *private) { device->private = private; }
char *tcmu_dev_get_cfgstring(struct tcmu_device *device) { return device->config; }

uint32_t tcmu_dev_get_block_size(struct tcmu_device *device) { return device->block_bytes; }
void tcmu_dev_set_block_size(struct tcmu_device *device, uint32_t bytes) { device->block_bytes = bytes; }
uint64_t tcmu_dev_get_num_lbas(struct tcmu_device *device) { return device->bytes / device->block_bytes; }
void tcmu_dev_set_num_lbas(struct tcmu_device *device, uint64_t blocks) { device->bytes = blocks * device->block_bytes; }
uint64_t tcmu_lba_to_byte(struct tcmu_device *device, uint64_t lba) { return lba * device->block_bytes; }
uint64_t tcmu_byte_to_lba(struct tcmu_device *device, uint64_t byte) { return byte / device->block_bytes; }

#define PROPERTY(type, name, field)                                                                                   \
    type tcmu_dev_get_##name(struct tcmu_device *device) { return device->field; }                                    \
    void tcmu_dev_set_##name(struct tcmu_device *device, type value) { device->field = value; }
PROPERTY(uint32_t, max_xfer_len, max_transfer)
PROPERTY(uint32_t, opt_xcopy_rw_len, copy_bytes)
PROPERTY(uint32_t, max_unmap_len, max_unmap)
PROPERTY(uint32_t, unmap_gran_align, unmap_alignment)
PROPERTY(bool, write_cache_enabled, has_write_cache)
PROPERTY(bool, solid_state_media, is_solid_state)
PROPERTY(bool, unmap_enabled, has_unmap)
PROPERTY(bool, write_protect_enabled, is_write_protected)

uint32_t tcmu_dev_get_opt_unmap_gran(struct tcmu_device *device) { return device->unmap_granularity; }
void tcmu_dev_set_opt_unmap_gran(struct tcmu_device *device, uint32_t blocks, bool split)
{
    (void)split;
    device->unmap_granularity = blocks;
}

/* What tcmu-runner reads in configfs. */
uint64_t tcmu_cfgfs_dev_get_info_u64(struct tcmu_device *device, const char *name, int *result)
{
    *result = strcmp(name, "Size") ? -ENOENT : 0;
    return *result ? 0 : device->bytes;
}

size_t tcmu_iovec_length(struct iovec *pieces, size_t count)
{
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += pieces[i].iov_len;
    return bytes;
}

/* Skips bytes; returns the number of pieces that are skipped as a whole. */
size_t tcmu_iovec_seek(struct iovec *pieces, size_t bytes)
{
    size_t skipped = 0;
    while (bytes) {
        size_t part = bytes < pieces->iov_len ? bytes : pieces->iov_len;
        bool is_whole = part == pieces->iov_len;
        pieces->iov_base = (char *)pieces->iov_base + part;
        pieces->iov_len -= part;
        bytes -= part;
        if (is_whole) {
            pieces++;
            skipped++;
        }
    }
    return skipped;
}

/* The first byte that differs; -1 if there is none. */
off_t tcmu_iovec_compare(void *memory, struct iovec *pieces, size_t bytes)
{
    for (off_t at = 0; bytes; pieces++) {
        size_t part = bytes < pieces->iov_len ? bytes : pieces->iov_len;
        for (size_t i = 0; i < part; i++, at++)
            if (((const char *)memory)[at] != ((const char *)pieces->iov_base)[i])
                return at;
        bytes -= part;
    }
    return -1;
}

void tcmu_iovec_zero(struct iovec *pieces, size_t count)
{
    for (size_t i = 0; i < count; i++)
        memset(pieces[i].iov_base, 0, pieces[i].iov_len);
}

bool tcmu_iovec_zeroed(struct iovec *pieces, size_t count)
{
    for (size_t i = 0; i < count; i++)
        for (size_t at = 0; at < pieces[i].iov_len; at++)
            if (((const char *)pieces[i].iov_base)[at])
                return false;
    return true;
}

size_t tcmu_memcpy_into_iovec(struct iovec *pieces, size_t count, void *from, size_t bytes)
{
    size_t copied = 0;
    for (; count && copied < bytes; pieces++, count--) {
        size_t left = bytes - copied, part = left < pieces->iov_len ? left : pieces->iov_len;
        memcpy(pieces->iov_base, (char *)from + copied, part);
        pieces->iov_base = (char *)pieces->iov_base + part;
        pieces->iov_len -= part;
        copied += part;
    }
    return copied;
}

size_t tcmu_memcpy_from_iovec(void *to, size_t bytes, struct iovec *pieces, size_t count)
{
    size_t copied = 0;
    for (; count && copied < bytes; pieces++, count--) {
        size_t left = bytes - copied, part = left < pieces->iov_len ? left : pieces->iov_len;
        memcpy((char *)to + copied, pieces->iov_base, part);
        pieces->iov_base = (char *)pieces->iov_base + part;
        pieces->iov_len -= part;
        copied += part;
    }
    return copied;
}

#define MESSAGE(level, is_shown)                                                                                      \
    __attribute__((format(printf, 4, 5))) void tcmu_##level##_message(                                                \
        struct tcmu_device *device, const char *function, int line, const char *format, ...)                          \
    {                                                                                                                 \
        (void)device;                                                                                                 \
        if (!(is_shown))                                                                                              \
            return;                                                                                                   \
        int cause = errno;                                                                                            \
        char text[LINE_BYTES];                                                                                        \
        va_list values;                                                                                               \
        va_start(values, format);                                                                                     \
        errno = cause; /* for %m */                                                                                   \
        vsnprintf(text, sizeof text, format, values);                                                                 \
        va_end(values);                                                                                               \
        size_t length = strcspn(text, "\n");                                                                          \
        fprintf(stderr, "lunar-tcmu: " #level ": %s:%d: %.*s\n", function, line, (int)length, text);                  \
        errno = cause;                                                                                                \
    }
MESSAGE(crit, true)
MESSAGE(err, true)
MESSAGE(warn, true)
MESSAGE(info, true)
MESSAGE(dbg, getenv("LUNAR_TCMU_DEBUG"))

/* ------------------------------------------------------------------------------------------------ for Lunar */

/* Facts of the plug-in that is loaded: zero if it has registered nothing. */
bool lunar_tcmu_is_registered(void) { return registered != NULL; }
const char *lunar_tcmu_name(void) { return registered->name ? registered->name : ""; }
const char *lunar_tcmu_subtype(void) { return registered->subtype ? registered->subtype : ""; }
const char *lunar_tcmu_config(void) { return registered->config_description ? registered->config_description : ""; }
bool lunar_tcmu_has_blocks(void) { return registered->open && registered->read && registered->write; }
bool lunar_tcmu_has_unmap(void) { return registered->unmap != NULL; }

/* Checks a configuration; the caller frees `*reason`. */
bool lunar_tcmu_accepts(const char *config, char **reason)
{
    *reason = NULL;
    return !registered->check_config || registered->check_config(config, reason);
}

/* Opens the device; NULL if the plug-in does not. */
struct tcmu_device *lunar_tcmu_open(const char *config, uint64_t bytes, uint32_t block_bytes)
{
    struct tcmu_device *device = calloc(1, sizeof *device);
    if (!device)
        return NULL;
    device->config = strdup(config);
    device->bytes = bytes;
    device->block_bytes = block_bytes;
    if (device->config && !(registered->initialize && registered->initialize()) && !registered->open(device, false))
        return device;
    free(device->config);
    free(device);
    return NULL;
}

void lunar_tcmu_close(struct tcmu_device *device)
{
    if (registered->close)
        registered->close(device);
    free(device->config);
    free(device);
}

static struct command *begin(void *data, size_t bytes)
{
    /* A defective plug-in may still answer the command before. */
    pthread_mutex_lock(&lock);
    memset(&call, 0, sizeof call);
    pthread_mutex_unlock(&lock);
    call.piece = (struct iovec){ .iov_base = data, .iov_len = bytes };
    call.scsi.cdb = call.cdb;
    call.scsi.pieces = call.command.pieces = &call.piece;
    call.scsi.piece_count = call.command.piece_count = 1;
    call.command.scsi = &call.scsi;
    call.command.piece_base = data;
    call.command.requested = bytes;
    clock_gettime(CLOCK_REALTIME, &call.command.begun);
    return &call.command;
}

/* The end of a command: `result` is that of the call, or says that an asynchronous plug-in will answer. */
static int end(int result)
{
    if (registered->threads || result != OK)
        return result;
    pthread_mutex_lock(&lock);
    while (!call.has_ended)
        pthread_cond_wait(&ended, &lock);
    result = call.result;
    pthread_mutex_unlock(&lock);
    return result;
}

int lunar_tcmu_read(struct tcmu_device *device, void *into, size_t bytes, uint64_t offset)
{
    struct command *command = begin(into, bytes);
    return end(registered->read(device, command, &call.piece, 1, bytes, (off_t)offset));
}

int lunar_tcmu_write(struct tcmu_device *device, void *data, size_t bytes, uint64_t offset)
{
    struct command *command = begin(data, bytes);
    return end(registered->write(device, command, &call.piece, 1, bytes, (off_t)offset));
}

/* A plug-in without a volatile cache has no flush. */
int lunar_tcmu_flush(struct tcmu_device *device)
{
    return registered->flush ? end(registered->flush(device, begin(NULL, 0))) : OK;
}

int lunar_tcmu_unmap(struct tcmu_device *device, uint64_t offset, uint64_t bytes)
{
    return registered->unmap ? end(registered->unmap(device, begin(NULL, 0), offset, bytes)) : NOT_HANDLED;
}
