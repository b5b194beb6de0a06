/* Executions that wait in a line, all of one graph and on known memory: frames that ask for them are read from a socket,
 * and each is computed by the session that is bound to its memory. Part of sessions.c.
 *
 * A frame is taken only if it is to the byte what it has to be (rpc/frames.py); any other one is left to Python, which
 * takes over those that wait before it. */
#include <errno.h>
#include <sys/socket.h>

#define MOST_KEY 256
#define MOST_KNOWN 64
#define MOST_WAITING 512
#define HEAD_BYTES 40
#define FLAG_WAITED 4
#define FLAG_MANY 8
enum { FRAME_EXECUTE = 1, NOTHING_MORE = -1, ENOUGH = -2 };

struct waiting {
    uint64_t job;
    int64_t received;
    int32_t known;
    int32_t waited;
};

/* The end of an execution, as the client reads it. */
struct record {
    uint64_t job;
    uint32_t status, yields;
    int64_t received, began, ended;
    uint64_t release, paused, restore;
};

struct line {
    /* What a frame has to say. */
    uint32_t graph;
    uint32_t bindings;
    uint32_t key_bytes;
    int32_t known_count;
    int32_t latest; /* the known memory that came last: the next one often follows it */
    int32_t room;   /* how many may wait */
    /* Those that wait, in a ring. */
    int32_t first, count;
    uint64_t last_job;
    int32_t many, unused; /* whether the client had many under way when it sent the last one */
    /* Of what was computed by the last call. */
    int64_t ended, took, took_before;
    int32_t any_queued; /* whether the client of one of them does not wait for it */
    int32_t failed;     /* whether the next one failed, and still waits */
    struct bound *bound[MOST_KNOWN];
    uint8_t keys[MOST_KNOWN][MOST_KEY];
    struct waiting waiting[MOST_WAITING];
};

static int known_memory(const struct line *line, const uint8_t *key)
{
    for (int i = 0, place = line->latest; i < line->known_count; i++, place++) {
        if (place >= line->known_count)
            place = 0;
        if (!memcmp(line->keys[place], key, line->key_bytes))
            return place;
    }
    return -1;
}

/* Whether a frame may wait here; then it does. */
static int line_up(struct line *line, const uint8_t *frame, size_t nbytes)
{
    uint16_t bindings;
    uint32_t numbers[3]; /* graph, batch, level of profile */
    uint64_t job, times[2];
    if (nbytes != HEAD_BYTES + (size_t)line->key_bytes || frame[0] != FRAME_EXECUTE || (frame[1] & ~(FLAG_WAITED | FLAG_MANY)))
        return 0;
    memcpy(&bindings, frame + 2, sizeof bindings);
    memcpy(numbers, frame + 4, sizeof numbers);
    memcpy(&job, frame + 16, sizeof job);
    memcpy(times, frame + 24, sizeof times);
    if (bindings != line->bindings || numbers[0] != line->graph || numbers[1] != 1 || numbers[2] || times[0] ||
        times[1])
        return 0;
    /* Numbers that only grow are none that are under way. */
    if (line->count && job <= line->last_job)
        return 0;
    int known = known_memory(line, frame + HEAD_BYTES);
    if (known < 0)
        return 0;
    line->latest = known + 1;
    line->last_job = job;
    line->many = (frame[1] & FLAG_MANY) != 0;
    line->waiting[(line->first + line->count++) % MOST_WAITING] =
        (struct waiting){job, monotonic_ns(), known, (frame[1] & FLAG_WAITED) != 0};
    return 1;
}

/* Reads frames from a socket for as long as they may wait here, but no more than `most`. Returns the size of a frame
 * that may not, which is in `frame`; 0 at the end of the connection, NOTHING_MORE if there is no further frame yet,
 * ENOUGH if `most` were read or nothing more may wait. */
API int64_t openhtp_take_frames(struct line *line, int socket, uint8_t *frame, size_t room, int most)
{
    while (most-- > 0 && line->count < line->room) {
        ssize_t nbytes;
        do
            nbytes = recv(socket, frame, room, MSG_DONTWAIT);
        while (nbytes < 0 && errno == EINTR);
        if (nbytes < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK ? NOTHING_MORE : 0;
        if (!line_up(line, frame, (size_t)nbytes))
            return nbytes;
    }
    return ENOUGH;
}

/* Computes what waits, in order, and writes a record of each: at most `most`, none begun later than `longest` ns after
 * the first. Returns how many. One that fails does not count, and goes on waiting. */
API int openhtp_compute_frames(struct line *line, struct record *records, int most, int64_t longest)
{
    int done = 0;
    int64_t began = monotonic_ns(), until = began + longest;
    line->ended = began;
    line->any_queued = line->failed = 0;
    while (done < most && line->count && line->ended < until) {
        const struct waiting *next = &line->waiting[line->first];
        status failed = openhtp_run(line->bound[next->known]);
        if (failed) {
            openhtp_forget(failed); /* computed by itself it fails again, and is reported then */
            line->failed = 1;
            break;
        }
        int64_t ended = monotonic_ns();
        records[done++] = (struct record){.job = next->job, .received = next->received, .began = line->ended, .ended = ended};
        line->took_before = line->took;
        line->took = ended - line->ended;
        line->ended = ended;
        line->any_queued |= !next->waited;
        line->first = (line->first + 1) % MOST_WAITING;
        line->count--;
    }
    return done;
}
