/*
 * The protocol between Lunar and a handler: a process that serves the data of a volume (level of blocks), or executes
 * the commands of a SCSI device of any type (level of SCSI commands, since version 2), or serves the data of a volume
 * and executes those of its SCSI commands that Lunar does not have (mixed level, since version 3).
 *
 * A handler connects to the socket of its volume (AF_UNIX, SOCK_SEQPACKET) and sends HELLO. Lunar answers WELCOME or
 * REFUSED, then sends one QUEUE for each of its cores, now or later. A queue is used as soon as it arrives. When Lunar
 * closes the connection, the handler ends, or connects again after it has finished or dropped all commands of the old
 * connection: Lunar sends those without an answer again.
 *
 * All numbers are little-endian; this header is for little-endian machines. Reserved fields are zero. A message may be
 * longer than its struct: a later version appends fields. A handler of version 1 sends a HELLO without device_type, one
 * of version 2 without codes, and one of version 3 without identity. Version 5 adds EXTENT and SPACE.
 *
 * Promises of a handler:
 *  - A WRITE, UNMAP or ZERO that was answered outlives the process: it is in the kernel at least (the page cache will
 *    do), because Lunar does not repeat it. With LUNAR_DURABLE, and after a FLUSH, it is on the medium.
 *  - Once a FLUSH has failed, it fails until the device is opened again: the kernel reports lost data only once.
 *  - Each command is answered once. Its data must not be touched after the answer.
 *  - A command may come a second time, on a new connection, although it was executed before.
 */
#ifndef LUNAR_HANDLER_H
#define LUNAR_HANDLER_H

#include <stdint.h>

#define LUNAR_PROTOCOL 5u
#define LUNAR_LEVEL_BLOCK 1u
#define LUNAR_LEVEL_SCSI 2u
#define LUNAR_LEVEL_MIXED 3u
#define LUNAR_MESSAGE_BYTES_MAX 4096u
#define LUNAR_NAME_BYTES 64u
#define LUNAR_IDENTITY_BYTES 128u
#define LUNAR_TEXT_BYTES_MAX 256u
#define LUNAR_QUEUE_DESCRIPTORS 4u

/* Codes of messages. */
#define LUNAR_HELLO 1u
#define LUNAR_WELCOME 2u
#define LUNAR_REFUSED 3u
#define LUNAR_QUEUE 4u
#define LUNAR_FAULT 5u
#define LUNAR_CLOSE 6u
#define LUNAR_STAND_BY 7u /* a struct lunar_hello, before HELLO: another server has the data now. Only of
                           * processes that Lunar starts */

#define LUNAR_SPACE 8u /* a struct lunar_space from the handler, after WELCOME, if LUNAR_FEATURE_SPACE applies */

/* Optional operations and messages (features): a bit that a side does not know is ignored. */
#define LUNAR_FEATURE_UNMAP 1u
#define LUNAR_FEATURE_ZERO 2u
#define LUNAR_FEATURE_EXTENT 4u
#define LUNAR_FEATURE_SPACE 8u

/* Flags of WELCOME. */
#define LUNAR_READ_ONLY 1u

struct lunar_header {
    uint32_t code;
    uint32_t length; /* of the message, with this header */
};

struct lunar_hello {
    struct lunar_header header;
    uint32_t protocol; /* the highest version that the handler has */
    uint32_t level;    /* LUNAR_LEVEL_BLOCK, LUNAR_LEVEL_SCSI or LUNAR_LEVEL_MIXED */
    uint64_t features; /* levels with blocks only, as is the size */
    uint64_t size;     /* bytes of the data; the volume may be smaller */
    char name[64];     /* name and version for the operator, UTF-8, padded with zeroes */
    uint8_t device_type; /* PERIPHERAL DEVICE TYPE, level of SCSI commands only */
    uint8_t reserved[7];
    /* The operation codes of the SCSI commands that it executes, mixed level only: bit N % 8 of byte N / 8 stands for
     * code N. Lunar refuses a handler that names a command of Lunar itself. */
    uint8_t codes[32];
    char identity[128]; /* of the data, level of blocks only: no other data has it; zeroes: not said */
};

struct lunar_welcome {
    struct lunar_header header;
    uint32_t protocol; /* the version that applies */
    uint32_t flags;
    uint64_t features; /* those that apply */
    uint64_t size;     /* bytes of the volume */
    uint32_t block_size;
    uint32_t queues; /* most queues that follow */
    char volume[64];
};

/* REFUSED and FAULT: a header, and text without a zero at its end. */

/* QUEUE comes with four descriptors (SCM_RIGHTS): the memory of the rings, the memory of the data, the eventfd that
 * Lunar signals, and the eventfd that the handler signals. The memory is mapped shared, from offset 0. */
struct lunar_queue {
    struct lunar_header header;
    uint32_t number;
    uint32_t depth; /* slots: a power of two */
    uint32_t generation;
    uint32_t transfer_max; /* most bytes of the data of a command */
    uint64_t ring_bytes;
    uint64_t data_bytes;
};

/* The queue has no command any more, and gets no other: its memory may be unmapped. */
struct lunar_close {
    struct lunar_header header;
    uint32_t number;
};

/* SPACE: the pool that the data takes space from. A handler sends it when the numbers have changed, and once a minute
 * if they have not: numbers that are older than five minutes do not count. Lunar ends a connection with more than 64
 * messages in a minute. */
#define LUNAR_ALLOCATED 1u
struct lunar_space {
    struct lunar_header header;
    uint64_t flags;     /* LUNAR_ALLOCATED: `allocated` is known */
    uint64_t free;      /* bytes that may still be taken from the pool */
    uint64_t size;      /* bytes of the pool */
    uint64_t allocated; /* bytes that the data takes */
    char pool[128];     /* the identity of the pool: no other pool has it */
    char name[64];      /* the name of the pool for the operator, UTF-8 */
};

/* Operations. */
#define LUNAR_READ 1u
#define LUNAR_WRITE 2u
#define LUNAR_FLUSH 3u
#define LUNAR_UNMAP 4u /* afterwards the bytes read as before or as zeroes */
#define LUNAR_ZERO 5u

/* Operations of the level of SCSI commands, and of the mixed level. `data` is the place of the frame, or of the names.
 *
 * Lunar shares the device among all initiators, and does what belongs to the target: REPORT LUNS, reservations, names.
 * The device reports a unit attention condition once, to the next command of any nexus, and none for power on, resets,
 * or what an initiator has changed: Lunar tells the nexuses. Commands that a handler has not answered when it ends are
 * not sent again. */
#define LUNAR_SCSI 6u   /* the CDB of the frame; `offset` is the nexus, 0: Lunar itself; `length` bytes of data */
#define LUNAR_ATTACH 7u /* a nexus begins, before its first command: `offset` is its number */
#define LUNAR_DETACH 8u /* it ends, and has no command in progress */
#define LUNAR_ABORT 9u  /* end the command early whose sequence is `offset`; it is answered all the same */
#define LUNAR_RESET 10u /* LOGICAL UNIT RESET; commands in progress end early if they can, and are answered */

/* Of levels with blocks again. The answer says how many bytes from `offset` on, 1 to `length`, are all mapped, or all
 * unmapped: those read as zeroes, also after every write that was answered before this command arrived. In doubt, bytes
 * are mapped. Answer a part if all of it takes long: the other commands of the volume wait for a late answer. */
#define LUNAR_EXTENT 11u

/* Flags of commands. */
#define LUNAR_DURABLE 1u /* of WRITE */
#define LUNAR_RELEASE 2u /* of ZERO: the space may be released */
#define LUNAR_DATA_IN 4u /* of SCSI: the data goes to the initiator */

/* The place of a SCSI command in the memory of the data. Its data begins LUNAR_FRAME_BYTES behind its first byte. */
#define LUNAR_CDB_BYTES_MAX 32u
#define LUNAR_SENSE_BYTES_MAX 252u
#define LUNAR_FRAME_BYTES 4096u
struct lunar_frame {
    uint8_t cdb[32];
    uint8_t cdb_length;
    uint8_t attribute; /* 0 simple, 1 head of queue, 2 ordered */
    uint8_t reserved[30];
    uint8_t sense[252]; /* from the handler */
};

/* The place of ATTACH. */
#define LUNAR_INITIATOR_BYTES_MAX 488u
struct lunar_nexus_names {
    uint16_t target_port; /* its relative identifier */
    uint16_t initiator_length;
    uint8_t reserved[20];
    char initiator[488]; /* UTF-8, for iSCSI `name,i,0xISID`, without a zero at its end */
};

/* Statuses. */
#define LUNAR_GOOD 0u
#define LUNAR_MEDIUM_ERROR 1u
#define LUNAR_NO_SPACE 2u
#define LUNAR_UNSUPPORTED 3u
#define LUNAR_NOT_READY 4u
#define LUNAR_FAILED 5u

/* The rings. Lunar adds commands at `submitted`, the handler adds answers at `completed`. Counters run freely: entry N
 * is at N modulo depth. Write the entry first, then the counter with release order; read the counter with acquire
 * order, then the entry.
 *
 * After answers: a full fence; if `lunar_sleeps` is 1, store 0 there and write 1 to the eventfd of Lunar.
 * To sleep: store 1 to `handler_sleeps`; a full fence; if `submitted` has not changed, wait (poll) for the eventfd of
 * the handler and for the socket; afterwards store 0. A handler that polls leaves it at 0. */
#define LUNAR_RING_MAGIC 0x48524e4cu
#define LUNAR_RING_VERSION 1u
#define LUNAR_AT_MAGIC 0u
#define LUNAR_AT_VERSION 4u
#define LUNAR_AT_DEPTH 8u
#define LUNAR_AT_GENERATION 12u
#define LUNAR_AT_SUBMITTED 64u
#define LUNAR_AT_COMPLETED 128u
#define LUNAR_AT_HANDLER_SLEEPS 192u
#define LUNAR_AT_LUNAR_SLEEPS 256u
#define LUNAR_AT_SUBMISSIONS 4096u /* depth commands, then depth answers */

struct lunar_submission {
    uint16_t slot;
    uint8_t operation;
    uint8_t flags;
    uint32_t generation;
    uint64_t sequence;
    uint64_t offset; /* bytes on the volume */
    uint64_t length; /* bytes */
    uint64_t data;   /* offset in the memory of the data, of READ and WRITE, SCSI and ATTACH */
    uint32_t timeout_milliseconds;
    uint8_t reserved[20];
};

struct lunar_completion {
    uint16_t slot;  /* slot, generation and sequence of the command */
    uint8_t status; /* of SCSI: LUNAR_GOOD if the command was executed, with whatever SCSI status */
    uint8_t scsi_status;
    uint32_t generation;
    uint64_t sequence;
    uint32_t moved;        /* of SCSI: bytes of the data, without the residual */
    uint16_t sense_length; /* of SCSI */
    uint8_t extent_mapped; /* of EXTENT: 0 if the bytes read as zeroes and take no space */
    uint8_t reserved;
    uint64_t extent_length; /* of EXTENT: bytes from `offset` on */
};

_Static_assert(sizeof(struct lunar_hello) == 264, "no padding");
_Static_assert(sizeof(struct lunar_welcome) == 104, "no padding");
_Static_assert(sizeof(struct lunar_queue) == 40, "no padding");
_Static_assert(sizeof(struct lunar_close) == 12, "no padding");
_Static_assert(sizeof(struct lunar_space) == 232, "no padding");
_Static_assert(sizeof(struct lunar_submission) == 64, "no padding");
_Static_assert(sizeof(struct lunar_completion) == 32, "no padding");
_Static_assert(sizeof(struct lunar_frame) == 316, "no padding");
_Static_assert(sizeof(struct lunar_nexus_names) == 512, "no padding");

#endif
