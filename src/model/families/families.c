/* SPDX-License-Identifier: Apache-2.0 */
/* The table of model families and look-ups in it. A new family is one row here. */
#include "model/families/family.h"

#include <string.h>

const m5_family *const m5_families[] = {
    &m5_family_qwen3_5, &m5_family_qwen3_5_moe, &m5_family_qwen3_next, &m5_family_qwen3,  &m5_family_qwen3_moe, &m5_family_qwen2,  &m5_family_llama,
    &m5_family_mistral, &m5_family_ministral3,  &m5_family_smollm3,    &m5_family_gemma2, &m5_family_gemma3,    &m5_family_gemma4, NULL,
};

static bool listed(const char *const *names, m5_slice name)
{
    for (; *names; names++) {
        if (m5_slice_is(name, *names)) return true;
    }
    return false;
}

const m5_family *m5_family_of_hf(m5_slice model_type)
{
    for (const m5_family *const *f = m5_families; *f; f++) {
        if (listed((*f)->hf_types, model_type)) return *f;
    }
    return NULL;
}

const m5_family *m5_family_of_gguf(m5_slice arch)
{
    for (const m5_family *const *f = m5_families; *f; f++) {
        if (listed((*f)->gguf_archs, arch)) return *f;
    }
    return NULL;
}

const m5_family *m5_family_named(const char *name)
{
    for (const m5_family *const *f = m5_families; *f; f++) {
        if (strcmp((*f)->name, name) == 0) return *f;
    }
    return NULL;
}

void m5_family_list(m5_buf *out, bool gguf)
{
    const char *sep = "";
    for (const m5_family *const *f = m5_families; *f; f++) {
        for (const char *const *n = gguf ? (*f)->gguf_archs : (*f)->hf_types; *n; n++) {
            m5_buf_printf(out, "%s%s", sep, *n);
            sep = ", ";
        }
    }
}
