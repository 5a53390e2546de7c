/* SPDX-License-Identifier: Apache-2.0 */
/* The model as its own draft model: a forward over some of its layers with its own head guesses the next tokens. Two variants: `exit` leaves after the
 * first layers, `skip` leaves out layers of the middle. */
#ifndef M5_ENGINE_SELF_DRAFT_H
#define M5_ENGINE_SELF_DRAFT_H

#include "model/model.h"

typedef enum m5_self_variant { M5_SELF_EXIT, M5_SELF_SKIP, M5_SELF_VARIANTS } m5_self_variant;

typedef struct m5_self_draft {
    m5_layer_set layers; /* that guess; none = no such drafts */
    float confidence;    /* a chain of guesses stops before the first whose probability is less; 0 = never */
    double accept;       /* share of checked guesses that were right in a calibration, where choosing begins; 0 = unknown */
    bool known;          /* from a calibration */
    bool pays;           /* it said that such drafts pay: they belong to M5_SPEC_AUTO then */
} m5_self_draft;

#endif
