/* One core's resources, as openhtp/sched/resources.py and openhtp/sched/arbiter.py have them, function by function:
 * the rules are explained there. Jobs of plans have one step each. */
#ifndef OPENHTP_ARBITER_H
#define OPENHTP_ARBITER_H
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PARALLEL_GRAPHS = 2, PARALLEL_WINDOW = 3 };
enum state { QUEUED, WAITING, RUNNING, YIELDING, PAUSED, ENDED };
enum action_kind { START, ASK_YIELD, FINISH, ARM_TIMER, GRANT, RELEASE };

/* Python fills these structures, so every field has 64 bits. */
struct device {
    int64_t cores, hmx, hvx, vtcm, sharing, windowing, parallel_graphs;
    int64_t policy;
};

struct demand {
    int64_t is_graph, pd, priority, hmx, hvx, vtcm, page, overmap, lonely;
};

struct share {
    const struct demand *demand;
    uint64_t hmx, hvx;
    int64_t start, end;
};

/* Lower goes first; compared from the left. */
struct rank {
    int64_t first, second;
};

struct source;

struct job {
    int64_t number, sequence, token;
    struct rank rank;
    enum state state;
    int64_t ending; /* the outcome that the end of its step will have; -1: that of the step */
    bool holds;
    struct share share;
    struct client *client;
    struct job *before, *after; /* in its client's queue; of an unused one: the next unused one */
    /* In the modelled engine, as sched/timed.py and sched/virtual.py have it. */
    const struct work *work;
    int64_t left_ns, started, due, answer, granted, held_ns, yields;
    bool stops, resumes;
    /* The request behind it. */
    struct source *source;
    int64_t asked, run, began, first_token;
};

struct action {
    enum action_kind kind;
    struct job *job;
    int64_t value; /* token, outcome, time, or whether it was paused */
    struct share share;
};

struct actions {
    struct action *items;
    int64_t count, room;
};

struct arbiter {
    int64_t number;
    const struct device *device;
    struct job **holders, **waiting;
    int64_t held, waits, waiting_apps;
    int64_t *next_token;
    /* Room for what is worked out while the core is settled. */
    struct share *claims, *others;
    struct job **blocked, **staying, **lower, **victims;
};

/* What a client is to the scheduler, and to the sources that ask for it. */
struct client {
    struct demand demand;
    struct share alone;
    struct arbiter *core;
    struct job *first, *last;
    const struct client_spec *spec;
    int64_t in_queue;
    struct outside *backlog;
    int64_t backlog_first, backlog_count, backlog_room;
};

static int compare_ranks(struct rank a, struct rank b) {
    if (a.first != b.first)
        return a.first < b.first ? -1 : 1;
    return (a.second > b.second) - (a.second < b.second);
}

static bool goes_before(const struct job *a, const struct job *b) {
    int order = compare_ranks(a->rank, b->rank);
    return order ? order < 0 : a->sequence < b->sequence;
}

static void act(struct actions *actions, enum action_kind kind, struct job *job, int64_t value) {
    struct action *action = &actions->items[actions->count++];
    action->kind = kind;
    action->job = job;
    action->value = value;
}

static bool page_fits(const struct demand *guest, const struct demand *host) {
    return !host->overmap || guest->page <= host->overmap;
}

static bool may_share(const struct demand *a, const struct demand *b, const struct device *device) {
    if (a->is_graph && b->is_graph)
        return device->parallel_graphs && device->sharing && (a->pd == b->pd || device->windowing);
    if (a->pd != b->pd && !device->windowing)
        return false;
    if (!a->vtcm || !b->vtcm)
        return true;
    if (a->lonely || b->lonely)
        return false;
    return page_fits(a, b) && page_fits(b, a);
}

static bool lowest_free(uint64_t busy, int64_t count, int64_t total, uint64_t *mask) {
    if (!busy) {
        *mask = ((uint64_t)1 << count) - 1;
        return true;
    }
    *mask = 0;
    for (int64_t unit = 0; unit < total && count; unit++) {
        uint64_t bit = (uint64_t)1 << unit;
        if (!(busy & bit)) {
            *mask |= bit;
            count--;
        }
    }
    return !count;
}

static bool is_free(const struct share *others, int64_t count, int64_t start, int64_t end) {
    for (int64_t i = 0; i < count; i++)
        if (others[i].end > start && end > others[i].start)
            return false;
    return true;
}

/* At the end of the VTCM for an overmap, otherwise the first fit from the front. The candidates are tried in order of
 * place; there are few, so the next one is looked for instead of sorting. */
static bool vtcm_start(
    const struct share *others, int64_t count, const struct demand *wanted, int64_t total, int64_t *start
) {
    int64_t size = wanted->vtcm, step = wanted->page ? wanted->page : 1, candidate;
    if (!wanted->overmap && !size) {
        *start = 0;
        return true;
    }
    for (candidate = wanted->overmap ? total : 0;;) {
        if (wanted->overmap) {
            *start = candidate - size;
            if (candidate >= size && is_free(others, count, *start, candidate))
                return true;
        } else {
            *start = (candidate + step - 1) / step * step;
            if (*start + size <= total && is_free(others, count, *start, *start + size))
                return true;
        }
        bool is_there = false;
        int64_t next = 0;
        for (int64_t i = 0; i < count; i++) {
            int64_t edge = wanted->overmap ? others[i].start : others[i].end;
            bool is_later = wanted->overmap ? edge < candidate : edge > candidate;
            if (is_later && (!is_there || (wanted->overmap ? edge > next : edge < next))) {
                next = edge;
                is_there = true;
            }
        }
        if (!is_there)
            return false;
        candidate = next;
    }
}

static bool place(
    const struct share *others, int64_t count, const struct demand *wanted, const struct device *device,
    struct share *share
) {
    uint64_t hmx_busy = 0, hvx_busy = 0;
    int64_t graphs = 0;
    for (int64_t i = 0; i < count; i++) {
        const struct demand *other = others[i].demand;
        if (!may_share(other, wanted, device))
            return false;
        if (other->is_graph && wanted->is_graph)
            if (++graphs >= MAX_PARALLEL_GRAPHS || other->priority != wanted->priority)
                return false;
        hmx_busy |= others[i].hmx;
        hvx_busy |= others[i].hvx;
    }
    share->demand = wanted;
    if (!lowest_free(hmx_busy, wanted->hmx, device->hmx, &share->hmx))
        return false;
    if (!lowest_free(hvx_busy, wanted->hvx, device->hvx, &share->hvx))
        return false;
    if (!vtcm_start(others, count, wanted, device->vtcm, &share->start))
        return false;
    share->end = share->start + wanted->vtcm;
    return true;
}

static void start_job(struct arbiter *core, struct job *job, const struct share *share, struct actions *actions) {
    job->state = RUNNING;
    job->share = *share;
    job->holds = true;
    core->holders[core->held++] = job;
    job->token = ++*core->next_token;
    act(actions, GRANT, job, 0);
    actions->items[actions->count - 1].share = job->share;
    act(actions, START, job, job->token);
}

static void enqueue(struct arbiter *core, struct job *job) {
    int64_t index = core->waits++;
    for (; index && goes_before(job, core->waiting[index - 1]); index--)
        core->waiting[index] = core->waiting[index - 1];
    core->waiting[index] = job;
    core->waiting_apps += !job->client->demand.is_graph;
}

static struct job *dequeue(struct arbiter *core, int64_t index) {
    struct job *job = core->waiting[index];
    core->waits--;
    memmove(&core->waiting[index], &core->waiting[index + 1], (core->waits - index) * sizeof job);
    core->waiting_apps -= !job->client->demand.is_graph;
    return job;
}

static void forget(struct arbiter *core, const struct job *job) {
    int64_t index = 0;
    while (core->waiting[index] != job)
        index++;
    dequeue(core, index);
}

static void release(struct arbiter *core, struct job *job, struct actions *actions, bool paused) {
    int64_t index = 0;
    while (core->holders[index] != job)
        index++;
    core->held--;
    memmove(&core->holders[index], &core->holders[index + 1], (core->held - index) * sizeof job);
    job->holds = false;
    act(actions, RELEASE, job, paused);
    if (paused) {
        job->state = PAUSED;
        enqueue(core, job);
    }
}

static void ask_to_yield(struct job *job, struct actions *actions) {
    job->state = YIELDING;
    act(actions, ASK_YIELD, job, job->token);
}

static bool is_among(struct job *const *jobs, int64_t count, const struct job *job) {
    for (int64_t i = 0; i < count; i++)
        if (jobs[i] == job)
            return true;
    return false;
}

/* The shares of ``jobs`` but those of ``gone``, and the claims, in ``core->others``; returns how many. */
static int64_t company(
    struct arbiter *core, struct job *const *jobs, int64_t count, struct job *const *gone, int64_t goners,
    int64_t claims
) {
    int64_t others = 0;
    for (int64_t i = 0; i < count; i++)
        if (!is_among(gone, goners, jobs[i]))
            core->others[others++] = jobs[i]->share;
    memcpy(&core->others[others], core->claims, claims * sizeof *core->claims);
    return others + claims;
}

static bool room_for(struct arbiter *core, struct job *job, int64_t claims, int64_t blocked, struct share *share) {
    const struct demand *demand = &job->client->demand;
    if (demand->is_graph && blocked) {
        int64_t ahead = 0;
        for (int64_t i = 0; i < core->held; i++)
            ahead += core->holders[i]->client->demand.is_graph;
        for (int64_t i = 0; i < blocked; i++)
            ahead += core->blocked[i]->client->demand.is_graph;
        if (ahead >= PARALLEL_WINDOW)
            return false;
    }
    int64_t others = company(core, core->holders, core->held, NULL, 0, claims);
    if (!place(core->others, others, demand, core->device, share))
        return false;
    for (int64_t i = 0; i < blocked; i++) {
        const struct job *other = core->blocked[i];
        struct share ignored;
        if (compare_ranks(other->rank, job->rank) >= 0)
            if (!place(share, 1, &other->client->demand, core->device, &ignored))
                return false;
    }
    return true;
}

static bool is_enough(
    struct arbiter *core, struct job *job, int64_t staying, struct job *const *gone, int64_t goners, int64_t claims,
    struct share *share
) {
    int64_t others = company(core, core->staying, staying, gone, goners, claims);
    return place(core->others, others, &job->client->demand, core->device, share);
}

/* Choose whom to evict among ``lower``, least urgent first; returns how many are in ``core->victims``. */
static int64_t choose_victims(struct arbiter *core, struct job *job, int64_t lower, int64_t staying, int64_t claims) {
    struct share ignored;
    for (int64_t i = 0; i < lower; i++)
        if (is_enough(core, job, staying, &core->lower[i], 1, claims, &ignored)) {
            core->victims[0] = core->lower[i];
            return 1;
        }
    if (!is_enough(core, job, staying, core->lower, lower, claims, &ignored))
        return 0;
    int64_t victims = lower;
    memcpy(core->victims, core->lower, lower * sizeof *core->lower);
    for (int64_t i = lower; i--;) { /* spare the most urgent first */
        int64_t spared = 0;
        while (core->victims[spared] != core->lower[i])
            spared++;
        memmove(&core->victims[spared], &core->victims[spared + 1], (victims - spared - 1) * sizeof job);
        core->victims[victims - 1] = core->lower[i];
        if (is_enough(core, job, staying, core->victims, victims - 1, claims, &ignored)) {
            victims--;
        } else { /* put it back where it was */
            memmove(&core->victims[spared + 1], &core->victims[spared], (victims - spared - 1) * sizeof job);
            core->victims[spared] = core->lower[i];
        }
    }
    return victims;
}

static bool claim(struct arbiter *core, struct job *job, int64_t claims, struct actions *actions, struct share *share) {
    int64_t staying = 0, lower = 0;
    for (int64_t i = 0; i < core->held; i++)
        if (core->holders[i]->state == RUNNING)
            core->staying[staying++] = core->holders[i];
    if (is_enough(core, job, staying, NULL, 0, claims, share))
        return true;
    for (int64_t i = 0; i < staying; i++) {
        struct job *holder = core->staying[i];
        if (compare_ranks(holder->rank, job->rank) <= 0)
            continue;
        int64_t index = lower++;
        for (; index && goes_before(core->lower[index - 1], holder); index--)
            core->lower[index] = core->lower[index - 1];
        core->lower[index] = holder;
    }
    int64_t victims = lower ? choose_victims(core, job, lower, staying, claims) : 0;
    if (!victims)
        return false;
    for (int64_t i = 0; i < victims; i++)
        ask_to_yield(core->victims[i], actions);
    return is_enough(core, job, staying, core->victims, victims, claims, share);
}

static bool settle_graphs(struct arbiter *core, struct actions *actions) {
    struct job *holder = core->holders[0];
    if (core->held > 1 || !holder->client->demand.is_graph || core->device->parallel_graphs)
        return false;
    if (compare_ranks(holder->rank, core->waiting[0]->rank) > 0 && holder->state == RUNNING)
        ask_to_yield(holder, actions);
    return true;
}

static void settle(struct arbiter *core, struct actions *actions) {
    if (core->waits && !core->held) {
        struct job *job = dequeue(core, 0);
        start_job(core, job, &job->client->alone, actions);
    }
    if (!core->waits || (!core->waiting_apps && settle_graphs(core, actions)))
        return;
    int64_t claims = 0, blocked = 0;
    for (int64_t index = 0; index < core->waits;) {
        struct job *job = core->waiting[index];
        struct share share;
        if (room_for(core, job, claims, blocked, &share)) {
            dequeue(core, index);
            start_job(core, job, &share, actions);
            continue;
        }
        index++;
        if (claim(core, job, claims, actions, &share))
            core->claims[claims++] = share;
        else
            core->blocked[blocked++] = job;
    }
}

static void ask_for_core(struct job *job, struct actions *actions) {
    struct arbiter *core = job->client->core;
    job->state = WAITING;
    if (!core->held && !core->waits) {
        start_job(core, job, &job->client->alone, actions);
        return;
    }
    enqueue(core, job);
    settle(core, actions);
}
#endif
