/*
 * A handler that serves a file: an example, and the test of lunar_handler.h.
 *
 *   cc -O2 -Wall -I ../include -o file_handler file_handler.c
 *   ./file_handler /run/lunar/handler/disk.sock disk.img
 *
 * It runs in one thread and connects again when Lunar has closed the connection.
 */
#define _GNU_SOURCE
#include "lunar_handler.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define QUEUES_MAX 64
/* Looks for commands before the handler sleeps. */
#define SPINS 2000
/* Rounds between two looks at the socket while there is always work. */
#define ROUNDS 1000

struct queue {
    unsigned char *ring, *data;
    size_t ring_bytes, data_bytes;
    int commands, answers; /* eventfds: of the handler, of Lunar */
    uint32_t number, depth, taken, completed;
};

static struct queue queues[QUEUES_MAX];
static int queue_count;
static int file;
static uint64_t file_size;

static uint32_t *word(struct queue *queue, unsigned at)
{
    return (uint32_t *)(queue->ring + at);
}

static uint32_t load(struct queue *queue, unsigned at)
{
    return __atomic_load_n(word(queue, at), __ATOMIC_ACQUIRE);
}

static void store(struct queue *queue, unsigned at, uint32_t value)
{
    __atomic_store_n(word(queue, at), value, __ATOMIC_RELEASE);
}

static unsigned status_of(int error)
{
    switch (error) {
    case EIO: return LUNAR_MEDIUM_ERROR;
    case ENOSPC: case EDQUOT: return LUNAR_NO_SPACE;
    case EOPNOTSUPP: return LUNAR_UNSUPPORTED;
    default: return LUNAR_FAILED;
    }
}

static unsigned read_file(unsigned char *to, uint64_t offset, uint64_t length)
{
    while (length > 0) {
        ssize_t got = pread(file, to, length, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return status_of(errno);
        if (got == 0) /* the file was truncated */
            return LUNAR_MEDIUM_ERROR;
        to += got, offset += (uint64_t)got, length -= (uint64_t)got;
    }
    return LUNAR_GOOD;
}

static unsigned flush_file(void)
{
    /* Linux reports once that data in the page cache could not be written, and then drops it: a later fdatasync that
       succeeds means nothing for the writes before. */
    static int lost;
    if (lost)
        return LUNAR_MEDIUM_ERROR;
    if (fdatasync(file) == 0)
        return LUNAR_GOOD;
    lost = 1;
    return status_of(errno);
}

static unsigned write_file(const unsigned char *from, uint64_t offset, uint64_t length, int durable)
{
    while (length > 0) {
        ssize_t put = pwrite(file, from, length, (off_t)offset);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return status_of(errno);
        from += put, offset += (uint64_t)put, length -= (uint64_t)put;
    }
    return durable ? flush_file() : LUNAR_GOOD;
}

static unsigned allocate(int mode, uint64_t offset, uint64_t length)
{
    mode |= FALLOC_FL_KEEP_SIZE;
    return fallocate(file, mode, (off_t)offset, (off_t)length) == 0 ? LUNAR_GOOD : status_of(errno);
}

/* How far the bytes from offset on are data, or a hole. */
static unsigned find_extent(uint64_t offset, uint64_t length, struct lunar_completion *answer)
{
    off_t data = lseek(file, (off_t)offset, SEEK_DATA), end;
    if (data < 0 && errno == ENXIO) /* a hole up to the end of the file */
        data = (off_t)file_size;
    if (data < 0)
        return status_of(errno);
    answer->extent_mapped = (uint64_t)data <= offset;
    end = answer->extent_mapped ? lseek(file, (off_t)offset, SEEK_HOLE) : data;
    if (end < 0)
        return status_of(errno);
    answer->extent_length = (uint64_t)end - offset < length ? (uint64_t)end - offset : length;
    return LUNAR_GOOD;
}

static unsigned execute(struct queue *queue, const struct lunar_submission *command, struct lunar_completion *answer)
{
    uint64_t offset = command->offset, length = command->length;
    if (offset > file_size || length > file_size - offset)
        return LUNAR_FAILED;
    int moves = command->operation == LUNAR_READ || command->operation == LUNAR_WRITE;
    if (moves && (command->data > queue->data_bytes || length > queue->data_bytes - command->data))
        return LUNAR_FAILED;
    switch (command->operation) {
    case LUNAR_READ:
        return read_file(queue->data + command->data, offset, length);
    case LUNAR_WRITE:
        return write_file(queue->data + command->data, offset, length, command->flags & LUNAR_DURABLE);
    case LUNAR_FLUSH:
        return flush_file();
    case LUNAR_UNMAP:
        return allocate(FALLOC_FL_PUNCH_HOLE, offset, length);
    case LUNAR_ZERO:
        return allocate(command->flags & LUNAR_RELEASE ? FALLOC_FL_PUNCH_HOLE : FALLOC_FL_ZERO_RANGE, offset, length);
    case LUNAR_EXTENT:
        return find_extent(offset, length, answer);
    default:
        return LUNAR_UNSUPPORTED;
    }
}

/* Executes one command, if there is one. Returns 1, or 0, or -1 if the ring is broken. */
static int work(struct queue *queue)
{
    uint32_t waiting = load(queue, LUNAR_AT_SUBMITTED) - queue->taken;
    if (waiting == 0)
        return 0;
    if (waiting > queue->depth)
        return -1;
    struct lunar_submission *commands = (void *)(queue->ring + LUNAR_AT_SUBMISSIONS);
    struct lunar_completion *answers = (void *)(commands + queue->depth);
    struct lunar_submission command = commands[queue->taken++ & (queue->depth - 1)];
    struct lunar_completion answer = {
        .slot = command.slot, .generation = command.generation, .sequence = command.sequence,
    };
    answer.status = (uint8_t)execute(queue, &command, &answer);
    answers[queue->completed++ & (queue->depth - 1)] = answer;
    store(queue, LUNAR_AT_COMPLETED, queue->completed);
    return 1;
}

/* Wakes Lunar after answers, if it sleeps. */
static void notify(struct queue *queue)
{
    uint64_t one = 1;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (load(queue, LUNAR_AT_LUNAR_SLEEPS) != 1)
        return;
    store(queue, LUNAR_AT_LUNAR_SLEEPS, 0);
    if (write(queue->answers, &one, sizeof one) < 0 && errno != EAGAIN)
        perror("eventfd");
}

/* Executes all commands that wait. Returns 1, 0 or -1 like work(). */
static int round_of_work(void)
{
    int found = 0;
    for (int i = 0; i < queue_count; i++) {
        int own = 0, result;
        /* As many as the queue has slots: the other queues wait. An answer does not wait for the next command. */
        while ((result = work(&queues[i])) > 0) {
            notify(&queues[i]), found = 1;
            if ((uint32_t)++own == queues[i].depth)
                break;
        }
        if (result < 0)
            return -1;
    }
    return found;
}

static int may_sleep(void)
{
    int may = 1;
    for (int i = 0; i < queue_count; i++)
        store(&queues[i], LUNAR_AT_HANDLER_SLEEPS, 1);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    for (int i = 0; i < queue_count; i++)
        may &= load(&queues[i], LUNAR_AT_SUBMITTED) == queues[i].taken;
    return may;
}

static int add_queue(const struct lunar_queue *message, const int *fds)
{
    struct queue *queue = &queues[queue_count];
    if (queue_count == QUEUES_MAX)
        return -1;
    memset(queue, 0, sizeof *queue);
    queue->number = message->number, queue->commands = fds[2], queue->answers = fds[3];
    queue->ring_bytes = message->ring_bytes, queue->data_bytes = message->data_bytes, queue->depth = message->depth;
    queue->ring = mmap(NULL, queue->ring_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
    queue->data = mmap(NULL, queue->data_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fds[1], 0);
    close(fds[0]), close(fds[1]);
    if (queue->ring == MAP_FAILED || queue->data == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    queue_count++;
    return load(queue, LUNAR_AT_MAGIC) == LUNAR_RING_MAGIC && load(queue, LUNAR_AT_VERSION) == LUNAR_RING_VERSION
        ? 0 : -1;
}

static void drop_queue(int i)
{
    munmap(queues[i].ring, queues[i].ring_bytes), munmap(queues[i].data, queues[i].data_bytes);
    close(queues[i].commands), close(queues[i].answers);
    queues[i] = queues[--queue_count];
}

static int close_queue(uint32_t number)
{
    for (int i = 0; i < queue_count; i++)
        if (queues[i].number == number) {
            drop_queue(i);
            break;
        }
    return 0;
}

/* Takes one message. Returns 0, or -1 at the end of the connection. */
static int receive(int socket)
{
    union {
        struct lunar_header header;
        struct lunar_welcome welcome;
        struct lunar_queue queue;
        struct lunar_close close;
        char bytes[LUNAR_MESSAGE_BYTES_MAX];
    } message;
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(LUNAR_QUEUE_DESCRIPTORS * sizeof(int))];
    } control;
    struct iovec part = { message.bytes, sizeof message.bytes };
    struct msghdr head = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes,
    };
    ssize_t length = recvmsg(socket, &head, MSG_CMSG_CLOEXEC);
    if (length < (ssize_t)sizeof message.header || message.header.length != (uint32_t)length)
        return -1;
    struct cmsghdr *rights = CMSG_FIRSTHDR(&head);
    int fds[LUNAR_QUEUE_DESCRIPTORS];
    int has_fds = rights != NULL && rights->cmsg_len == CMSG_LEN(sizeof fds);
    if (has_fds)
        memcpy(fds, CMSG_DATA(rights), sizeof fds);
    size_t text = (size_t)length - sizeof message.header;
    switch (message.header.code) {
    case LUNAR_WELCOME:
        if ((size_t)length < sizeof message.welcome)
            return -1;
        printf("serving volume %.64s\n", message.welcome.volume);
        fflush(stdout);
        return 0;
    case LUNAR_QUEUE:
        return has_fds && (size_t)length >= sizeof message.queue ? add_queue(&message.queue, fds) : -1;
    case LUNAR_CLOSE:
        return (size_t)length >= sizeof message.close ? close_queue(message.close.number) : -1;
    case LUNAR_REFUSED:
    case LUNAR_FAULT:
        fprintf(stderr, "Lunar says: %.*s\n", (int)text, message.bytes + sizeof message.header);
        return -1;
    default:
        return 0;
    }
}

/* Waits for messages and, if there is no work, for commands. Returns 0, or -1 at the end of the connection. */
static int wait_for_more(int socket, int timeout)
{
    struct pollfd sources[QUEUES_MAX + 1] = { { .fd = socket, .events = POLLIN } };
    uint64_t count;
    for (int i = 0; i < queue_count; i++)
        sources[i + 1] = (struct pollfd){ .fd = queues[i].commands, .events = POLLIN };
    if (poll(sources, (nfds_t)queue_count + 1, timeout) < 0)
        return errno == EINTR ? 0 : -1;
    for (int i = 0; i < queue_count; i++)
        if (sources[i + 1].revents && read(queues[i].commands, &count, sizeof count) < 0 && errno != EAGAIN)
            return -1;
    return sources[0].revents ? receive(socket) : 0;
}

static void serve(int socket)
{
    for (unsigned idle = 0, rounds = 0;; rounds++) {
        int found = round_of_work();
        if (found < 0)
            return;
        idle = found ? 0 : idle + 1;
        if (idle > SPINS) {
            int timeout = may_sleep() ? -1 : 0;
            if (wait_for_more(socket, timeout) < 0)
                return;
            for (int i = 0; i < queue_count; i++)
                store(&queues[i], LUNAR_AT_HANDLER_SLEEPS, 0);
            idle = 0;
        } else if (rounds % ROUNDS == 0 && wait_for_more(socket, 0) < 0) {
            return;
        }
    }
}

static int say_hello(const char *path)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    struct lunar_hello hello = {
        .header = { LUNAR_HELLO, sizeof hello }, .protocol = LUNAR_PROTOCOL, .level = LUNAR_LEVEL_BLOCK,
        .features = LUNAR_FEATURE_UNMAP | LUNAR_FEATURE_ZERO | LUNAR_FEATURE_EXTENT, .size = file_size,
        .name = "file_handler 1.0",
    };
    int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (connection < 0 || strlen(path) >= sizeof address.sun_path)
        return -1;
    strcpy(address.sun_path, path);
    if (connect(connection, (struct sockaddr *)&address, sizeof address) < 0
        || send(connection, &hello, sizeof hello, MSG_NOSIGNAL) != (ssize_t)sizeof hello) {
        close(connection);
        return -1;
    }
    return connection;
}

int main(int argc, char **argv)
{
    struct stat status;
    if (argc != 3) {
        fprintf(stderr, "use: %s SOCKET FILE\n", argv[0]);
        return 2;
    }
    file = open(argv[2], O_RDWR | O_CLOEXEC);
    if (file < 0 || fstat(file, &status) < 0) {
        perror(argv[2]);
        return 1;
    }
    file_size = (uint64_t)status.st_size;
    for (;;) {
        int connection = say_hello(argv[1]);
        if (connection >= 0) {
            serve(connection);
            close(connection);
        }
        /* No command of the old connection is left: they are executed one by one. */
        while (queue_count > 0)
            drop_queue(0);
        nanosleep(&(struct timespec){ .tv_nsec = 200000000 }, NULL);
    }
}
