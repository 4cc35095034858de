/*
 * A plug-in for tests: data in memory, asynchronous. A thread of its own answers each command. It has the part of the
 * interface of tcmu-runner that it needs. Its configuration is "memory/zero" or anything else, which it refuses.
 */

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>

struct tcmu_device;
struct tcmur_cmd;

void tcmur_cmd_complete(struct tcmu_device *device, void *data, int result);
void *tcmur_dev_get_private(struct tcmu_device *device);
void tcmur_dev_set_private(struct tcmu_device *device, void *private);
uint64_t tcmu_dev_get_num_lbas(struct tcmu_device *device);
uint32_t tcmu_dev_get_block_size(struct tcmu_device *device);
void tcmu_err_message(struct tcmu_device *device, const char *function, int line, const char *format, ...);
size_t tcmu_memcpy_into_iovec(struct iovec *pieces, size_t count, void *from, size_t bytes);
size_t tcmu_memcpy_from_iovec(void *to, size_t bytes, struct iovec *pieces, size_t count);
int tcmur_register_handler(void *handler);

struct work {
    struct tcmu_device *device;
    struct tcmur_cmd *command;
    struct iovec *pieces;
    size_t count, bytes;
    off_t offset;
    int kind;
};

static void *execute(void *data)
{
    struct work *work = data;
    char *memory = tcmur_dev_get_private(work->device);
    if (work->kind == 'r')
        tcmu_memcpy_into_iovec(work->pieces, work->count, memory + work->offset, work->bytes);
    else if (work->kind == 'w')
        tcmu_memcpy_from_iovec(memory + work->offset, work->bytes, work->pieces, work->count);
    else
        memset(memory + work->offset, 0, work->bytes);
    tcmur_cmd_complete(work->device, work->command, 0);
    free(work);
    return NULL;
}

static int begin(struct work work)
{
    pthread_t thread;
    struct work *copy = malloc(sizeof *copy);
    *copy = work;
    if (pthread_create(&thread, NULL, execute, copy))
        return 1; /* TCMU_STS_NO_RESOURCE */
    pthread_detach(thread);
    return 0;
}

static int read_blocks(struct tcmu_device *d, struct tcmur_cmd *c, struct iovec *p, size_t n, size_t bytes, off_t at)
{
    return begin((struct work){ d, c, p, n, bytes, at, 'r' });
}

static int write_blocks(struct tcmu_device *d, struct tcmur_cmd *c, struct iovec *p, size_t n, size_t bytes, off_t at)
{
    return begin((struct work){ d, c, p, n, bytes, at, 'w' });
}

static int flush(struct tcmu_device *d, struct tcmur_cmd *c)
{
    return begin((struct work){ d, c, NULL, 0, 0, 0, 'f' });
}

static int unmap(struct tcmu_device *d, struct tcmur_cmd *c, uint64_t offset, uint64_t bytes)
{
    return begin((struct work){ d, c, NULL, 0, bytes, (off_t)offset, 'u' });
}

static bool check_config(const char *config, char **reason)
{
    bool is_known = !strcmp(config, "memory/zero");
    if (!is_known)
        *reason = strdup("its only configuration is zero");
    return is_known;
}

static int open_device(struct tcmu_device *device, bool reopen)
{
    char *memory = calloc(tcmu_dev_get_num_lbas(device), tcmu_dev_get_block_size(device));
    if (!memory || reopen)
        return -1;
    tcmur_dev_set_private(device, memory);
    tcmu_err_message(device, __func__, __LINE__, "%d bytes of a block\n", (int)tcmu_dev_get_block_size(device));
    return 0;
}

static void close_device(struct tcmu_device *device)
{
    free(tcmur_dev_get_private(device));
}

/* struct tcmur_handler: the members of version 1.5.3. */
static struct {
    const char *name, *subtype, *config_description;
    void *opaque;
    bool (*check_config)(const char *, char **);
    void *reconfigure;
    int (*open)(struct tcmu_device *, bool);
    void (*close)(struct tcmu_device *);
    int threads;
    void *handle;
    int (*read)(struct tcmu_device *, struct tcmur_cmd *, struct iovec *, size_t, size_t, off_t);
    int (*write)(struct tcmu_device *, struct tcmur_cmd *, struct iovec *, size_t, size_t, off_t);
    int (*flush)(struct tcmu_device *, struct tcmur_cmd *);
    int (*unmap)(struct tcmu_device *, struct tcmur_cmd *, uint64_t, uint64_t);
    void *others[12];
} handler = {
    .name = "Memory",
    .subtype = "memory",
    .config_description = "zero",
    .check_config = check_config,
    .open = open_device,
    .close = close_device,
    .read = read_blocks,
    .write = write_blocks,
    .flush = flush,
    .unmap = unmap,
};

int handler_init(void)
{
    return tcmur_register_handler(&handler);
}
