/* report.c: what was found, once for each pair of places, and deadlocks with all that wait.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "emu/engine.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { REPORTS = 48, TITLE_BYTES = 80, TEXT_BYTES = 640, DEADLOCK_BYTES = 12000, WHO = 96 };

typedef struct report {
    int hazard, is_error;
    mxa_emu_site now, before;
    uint32_t count;
    char title[TITLE_BYTES];
    char text[TEXT_BYTES];
} report;

struct mxa_emu_reports {
    report list[REPORTS];
    int count, errors, warnings;
    uint32_t hazards, warned;
    int deadlocked;
    char deadlock[DEADLOCK_BYTES];
};

struct mxa_emu_reports *mxa_emu_reports_new(void)
{
    return mxa_emu_alloc(sizeof(struct mxa_emu_reports));
}

void mxa_emu_reports_free(struct mxa_emu_reports *reports)
{
    mxa_emu_free(reports);
}

void mxa_emu_reports_sum(const struct mxa_emu_reports *reports, mxa_emu_result *result)
{
    result->errors = reports->errors;
    result->warnings = reports->warnings;
    result->hazards = reports->hazards;
    result->warned = reports->warned;
    result->deadlock = reports->deadlocked;
}

static void add(int is_error, int hazard, const char *title, mxa_emu_site now, mxa_emu_site before,
                const char *format, va_list values)
{
    struct mxa_emu_reports *reports = mxa_emu_now->reports;
    for (int i = 0; i < reports->count; i++) {
        report *r = &reports->list[i];
        if (r->now == now && r->before == before && r->hazard == hazard &&
            r->is_error == is_error && strcmp(r->title, title) == 0) {
            r->count++;
            return;
        }
    }
    *(is_error ? &reports->errors : &reports->warnings) += 1;
    *(is_error ? &reports->hazards : &reports->warned) |= 1u << hazard;
    if (reports->count == REPORTS) {
        return;
    }
    report *r = &reports->list[reports->count++];
    r->is_error = is_error;
    r->hazard = hazard;
    r->now = now;
    r->before = before;
    r->count = 1;
    (void)snprintf(r->title, sizeof r->title, "%s", title);
    (void)vsnprintf(r->text, sizeof r->text, format, values);
}

void mxa_emu_error(int hazard, const char *title, mxa_emu_site now, mxa_emu_site before,
                   const char *format, ...)
{
    va_list values;
    va_start(values, format);
    add(1, hazard, title, now, before, format, values);
    va_end(values);
}

void mxa_emu_warn(int hazard, const char *title, mxa_emu_site now, mxa_emu_site before,
                  const char *format, ...)
{
    va_list values;
    va_start(values, format);
    add(0, hazard, title, now, before, format, values);
    va_end(values);
}

/* ---- names ---- */

const char *mxa_emu_kind_name(int kind)
{
    static const char *const names[MXA_EMU_KINDS] = {"nothing",
                                                     "thread",
                                                     "atomic",
                                                     "mbarrier",
                                                     "TMA load",
                                                     "TMA store",
                                                     "launch control",
                                                     "wgmma operand",
                                                     "tcgen05.mma operand",
                                                     "tcgen05.mma accumulator",
                                                     "tcgen05.cp",
                                                     "tcgen05.ld",
                                                     "tcgen05.st",
                                                     "tcgen05.alloc",
                                                     "tcgen05.commit",
                                                     "mbarrier.inval"};
    return kind >= 0 && kind < MXA_EMU_KINDS ? names[kind] : "?";
}

mxa_emu_thread *mxa_emu_thread_of(uint32_t component)
{
    const mxa_emu *emu = mxa_emu_now;
    const uint32_t cta = component / (uint32_t)emu->threads;
    return cta < (uint32_t)emu->cluster
               ? &emu->ctas[cta]->threads[component % (uint32_t)emu->threads]
               : NULL;
}

const char *mxa_emu_thread_text(uint32_t component, char *text, size_t bytes)
{
    const mxa_emu_thread *thread = mxa_emu_thread_of(component);
    if (!thread) {
        (void)snprintf(text, bytes, "no thread");
        return text;
    }
    char cta[24] = "";
    if (mxa_emu_now->cluster > 1) {
        (void)snprintf(cta, sizeof cta, " CTA %d", thread->cta->rank);
    }
    (void)snprintf(text, bytes, "%s%s%swarp %d lane %d", thread->role ? thread->role : "", cta,
                   thread->role || cta[0] ? ", " : "", thread->warp->index, thread->lane);
    return text;
}

const char *mxa_emu_thread_and_barrier_text(uint32_t component, int arrived, char *text,
                                            size_t bytes)
{
    const mxa_emu_thread *thread = mxa_emu_thread_of(component);
    const mxa_emu_mbarrier *barrier = thread ? arrived ? thread->arrived : thread->waited : NULL;
    char who[96];
    if (!barrier) {
        return mxa_emu_thread_text(component, text, bytes);
    }
    (void)snprintf(text, bytes, "%s, which last %s %s, phase %d",
                   mxa_emu_thread_text(component, who, sizeof who),
                   arrived ? "arrived on" : "waited for", barrier->name,
                   arrived ? thread->arrived_phase : thread->waited_phase);
    return text;
}

/* The last region that holds `at`, or NULL. */
static const mxa_emu_region_name *region_of(const mxa_emu_region_name *regions, int count,
                                            uint32_t at)
{
    for (int i = count - 1; i >= 0; i--) {
        if (at >= regions[i].at && at - regions[i].at < regions[i].size) {
            return &regions[i];
        }
    }
    return NULL;
}

const char *mxa_emu_shared_text(uint32_t address, char *text, size_t bytes)
{
    const mxa_emu_cta *cta = mxa_emu_cta_of(address);
    const mxa_emu_region_name *region =
        cta ? region_of(cta->barriers->shared_region, cta->barriers->shared_regions, address)
            : NULL;
    if (region) {
        (void)snprintf(text, bytes, "shared memory %s + %u (0x%x)", region->name,
                       address - region->at, address);
    } else {
        (void)snprintf(text, bytes, "shared memory 0x%x (dynamic + %d)", address,
                       cta ? (int)((address & 0xFFFFFF) - cta->shared_base) : -1);
    }
    return text;
}

const char *mxa_emu_tensor_text(const mxa_emu_cta *cta, uint32_t lane, uint32_t column, char *text,
                                size_t bytes)
{
    const mxa_emu_region_name *region =
        region_of(cta->barriers->tensor_region, cta->barriers->tensor_regions, column);
    if (region) {
        (void)snprintf(text, bytes, "tensor memory %s + %u (column %u), lanes from %u",
                       region->name, column - region->at, column, lane);
    } else {
        (void)snprintf(text, bytes, "tensor memory column %u, lanes from %u", column, lane);
    }
    return text;
}

static void add_region(mxa_emu_region_name *regions, int *count, uint32_t at, uint32_t size,
                       const char *name, int index)
{
    int i = 0;
    while (i < *count && (regions[i].at != at || regions[i].size != size)) {
        i++;
    }
    if (i < MXA_EMU_REGIONS) {
        *count += i == *count;
        regions[i].at = at;
        regions[i].size = size;
        (void)snprintf(regions[i].name, sizeof regions[i].name, "%s[%d]", name, index);
    }
}

void mxa_emu_role(const char *name)
{
    mxa_emu_now->thread->role = name;
}

void mxa_emu_region(uint32_t at, uint32_t size, const char *name, int index)
{
    struct mxa_emu_barriers *barriers = mxa_emu_now->thread->cta->barriers;
    add_region(barriers->shared_region, &barriers->shared_regions, at, size, name, index);
}

void mxa_emu_tensor_region(uint32_t column, uint32_t columns, const char *name, int index)
{
    struct mxa_emu_barriers *barriers = mxa_emu_now->thread->cta->barriers;
    add_region(barriers->tensor_region, &barriers->tensor_regions, column & 0xFFFF, columns, name,
               index);
}

/* ---- deadlock ---- */

typedef struct text {
    char *at;
    size_t used, room;
} text;

static void say(text *to, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(text *to, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    if (to->used < to->room) {
        const int more = vsnprintf(to->at + to->used, to->room - to->used, format, values);
        to->used += more > 0 ? (size_t)more : 0;
    }
    va_end(values);
}

static int waits_alike(const mxa_emu_thread *a, const mxa_emu_thread *b)
{
    return a->state == b->state && a->site == b->site && a->cta == b->cta &&
           (a->state != MXA_EMU_AT_MBARRIER ||
            (a->wait_address == b->wait_address && a->wait_parity == b->wait_parity)) &&
           (a->state != MXA_EMU_IN_MEETING || a->warp == b->warp);
}

static void describe_mbarrier(text *to, const mxa_emu_thread *thread)
{
    const mxa_emu_mbarrier *barrier = mxa_emu_mbarrier_at(thread->wait_address, thread->site);
    if (!barrier) {
        return;
    }
    say(to, "wait for %s, parity %u: in phase %d, %d of %u arrivals missing, %d bytes to come",
        barrier->name, thread->wait_parity, barrier->phase, barrier->pending, barrier->count,
        barrier->bytes);
    if (barrier->arrives) {
        say(to, "\n        should arrive: %s", barrier->arrives);
    }
    const uint32_t kept =
        barrier->arrivals < MXA_EMU_ARRIVALS ? barrier->arrivals : MXA_EMU_ARRIVALS;
    mxa_emu_site told[4];
    uint32_t count = 0;
    for (uint32_t i = 0; i < kept && count < 4; i++) {
        const mxa_emu_arrival *arrival =
            &barrier->arrival[(barrier->arrivals - 1 - i) % MXA_EMU_ARRIVALS];
        uint32_t t = 0;
        while (t < count && told[t] != arrival->site) {
            t++;
        }
        if (t == count) {
            char who[WHO];
            told[count++] = arrival->site;
            say(to, "\n        came in phase %d: %s, %s  @%d@", arrival->phase,
                mxa_emu_kind_name(arrival->kind),
                mxa_emu_thread_text(arrival->thread, who, sizeof who), arrival->site);
        }
    }
    if (kept == 0) {
        say(to, "\n        nobody ever arrived on it");
    }
}

static void describe_wait(text *to, const mxa_emu_thread *thread)
{
    const mxa_emu_meeting *meeting = thread->warp->meeting;
    const mxa_emu_warp *first = thread->warp - thread->warp->index % 4;
    const mxa_emu_named_barrier *named = &thread->cta->barriers->named[thread->wait_barrier];
    switch (thread->state) {
    case MXA_EMU_AT_MBARRIER:
        describe_mbarrier(to, thread);
        break;
    case MXA_EMU_AT_BARRIER:
        say(to, "wait at barrier %d: %d of %d threads are there", thread->wait_barrier,
            named->arrived, named->expected);
        break;
    case MXA_EMU_AT_CLUSTER_BARRIER:
        say(to, "wait at the cluster barrier: %d of %d threads are there",
            mxa_emu_engine_now()->cluster_arrived, mxa_emu_now->cluster * mxa_emu_now->threads);
        break;
    case MXA_EMU_IN_MEETING:
        if (thread->settles) {
            meeting = &thread->warp->left[thread->warp->left_done % MXA_EMU_LEFT];
        } else if (!meeting->come) {
            meeting = first->group_meeting;
        }
        say(to, "wait at %s for lanes of their %s: %d of %d are there", meeting->name,
            meeting->lanes == MXA_EMU_LANES ? "warp" : "warpgroup", meeting->come, meeting->lanes);
        break;
    default:
        say(to, "wait for %s", thread->condition_name);
        break;
    }
}

void mxa_emu_report_deadlock(void)
{
    mxa_emu *emu = mxa_emu_now;
    struct mxa_emu_reports *reports = emu->reports;
    text to = {reports->deadlock, 0, sizeof reports->deadlock};
    const int all = emu->cluster * emu->threads;
    reports->deadlocked = 1;
    reports->errors++;
    reports->hazards |= 1u << 12;
    for (int i = 0; i < all; i++) {
        const mxa_emu_thread *thread = mxa_emu_thread_of((uint32_t)i);
        int before = 0, count = 0;
        char who[WHO];
        if (thread->state == MXA_EMU_FINISHED) {
            continue;
        }
        for (int j = 0; j < all; j++) {
            const int alike = waits_alike(thread, mxa_emu_thread_of((uint32_t)j));
            before |= alike && j < i;
            count += alike;
        }
        if (before) {
            continue;
        }
        say(&to, "    %d thread%s (%s%s) ", count, count == 1 ? "" : "s",
            count == 1 ? "" : "first: ", mxa_emu_thread_text((uint32_t)i, who, sizeof who));
        describe_wait(&to, thread);
        say(&to, "  @%d@\n", thread->site);
    }
}

/* ---- all of it as text ---- */

/* Copies; a place, as @number@, becomes its line. */
static void say_with_places(text *to, const char *from)
{
    for (;;) {
        const char *mark = strchr(from, '@');
        int site = 0, length = 0;
        if (!mark) {
            say(to, "%s", from);
            return;
        }
        say(to, "%.*s", (int)(mark - from), from);
        if (sscanf(mark, "@%d@%n", &site, &length) == 1 && length > 0) {
            char place[256];
            mxa_emu_site_text(site, place, sizeof place);
            say(to, "[%s]", place);
            from = mark + length;
        } else {
            say(to, "@");
            from = mark + 1;
        }
    }
}

char *mxa_emu_reports_text(const struct mxa_emu_reports *reports)
{
    const size_t room = 48 * (TEXT_BYTES + 700) + 4 * DEADLOCK_BYTES;
    if (reports->errors + reports->warnings == 0) {
        return NULL;
    }
    text to = {mxa_emu_alloc(room), 0, room};
    if (!to.at) {
        return NULL;
    }
    say(&to, "%s: seed %llu, %d errors, %d warnings\n", mxa_emu_engine_now()->kernel->name,
        (unsigned long long)mxa_emu_now->options.seed, reports->errors, reports->warnings);
    for (int i = 0; i < reports->count; i++) {
        const report *r = &reports->list[i];
        char place[256];
        say(&to, "%s", r->is_error ? "error" : "warning");
        if (r->hazard) {
            say(&to, " H%d", r->hazard);
        }
        say(&to, ": %s", r->title);
        if (r->count > 1) {
            say(&to, " (%u times)", r->count);
        }
        say(&to, ": %s\n", r->text);
        mxa_emu_site_text(r->now, place, sizeof place);
        say(&to, "    at:  %s\n", place);
        if (r->before) {
            mxa_emu_site_text(r->before, place, sizeof place);
            say(&to, "    was: %s\n", place);
        }
    }
    if (reports->deadlocked) {
        say(&to, "error H12: deadlock: no thread can run and nothing asynchronous is pending\n");
        say_with_places(&to, reports->deadlock);
    }
    return to.at;
}
