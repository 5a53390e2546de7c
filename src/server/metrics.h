/* SPDX-License-Identifier: Apache-2.0 */
/* Figures of the engine as Prometheus text and as JSON properties. Room: server/metrics.c. Pure: status -> bytes. */
#ifndef M5_SERVER_METRICS_H
#define M5_SERVER_METRICS_H

#include "base/str.h"
#include "m5.h"
#include "server/turn.h"

/* Text exposition format 0.0.4. */
void m5_metrics_write(m5_buf *out, const m5_engine_status *st, uint64_t rss_bytes);
/* GET /health of a loaded model. False: requests exist but no step has ended for a long time ("stalled"), which is answered as 503. */
bool m5_health_write(m5_buf *out, const m5_engine_status *st, uint64_t now_us);
/* GET /props: what this server is and how it is set up. */
void m5_props_write(m5_buf *out, const m5_engine_info *info, const char *model_id, const m5_wire *wire, const m5_turn_policy *policy);
/* The object that names layers left out, in /props and in every answer. */
void m5_lossy_write(m5_buf *out, const m5_lossy_info *l);

#endif
