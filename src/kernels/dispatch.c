/* SPDX-License-Identifier: Apache-2.0 */
/* Which instruction sets run: detection, names, and filling of the kernel table. The only place that asks the processor. */
#include "kernels/kernels.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

static uint64_t xcr0(void)
{
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

#ifdef __linux__
/* Linux hands out the 8 KB of tile registers only to processes that ask: arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA), which covers the threads
 * started later. */
static bool tiles_granted(void)
{
    enum { SYS_ARCH_PRCTL = 158, REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };
    long rc;
    __asm__ volatile("syscall" : "=a"(rc) : "a"((long)SYS_ARCH_PRCTL), "D"((long)REQ_XCOMP_PERM), "S"((long)XTILEDATA) : "rcx", "r11", "memory");
    return rc == 0;
}
#else
static bool tiles_granted(void)
{
    return false;
}
#endif

uint32_t m5_isa_detect(void)
{
    uint32_t a, b, c, d, isa = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
    bool osxsave = c >> 27 & 1, avx = c >> 28 & 1, fma = c >> 12 & 1, f16c = c >> 29 & 1;
    if (!osxsave || !avx || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    uint64_t os = xcr0();
    bool avx2 = b >> 5 & 1;
    if ((os & 0x6) == 0x6 && avx2 && fma && f16c) isa |= M5_ISA_AVX2;
    bool f = b >> 16 & 1, dq = b >> 17 & 1, bw = b >> 30 & 1, vl = b >> 31 & 1, vnni = c >> 11 & 1;
    if ((os & 0xe6) == 0xe6 && isa && f && dq && bw && vl && vnni) isa |= M5_ISA_AVX512;
    bool amx_tile = d >> 24 & 1, amx_int8 = d >> 25 & 1;
    if ((os & 0x60000) == 0x60000 && isa & M5_ISA_AVX512 && amx_tile && amx_int8 && tiles_granted()) isa |= M5_ISA_AMX;
    return isa;
}

static bool is_intel(void)
{
    uint32_t a, b, c, d;
    return __get_cpuid(0, &a, &b, &c, &d) && b == signature_INTEL_ebx && c == signature_INTEL_ecx && d == signature_INTEL_edx;
}
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>

/* By number: older headers know neither. */
enum { HAS_DOT_PRODUCT = 1 << 20, HAS2_I8MM = 1 << 13 };

uint32_t m5_isa_detect(void)
{
    if (!(getauxval(AT_HWCAP) & HAS_DOT_PRODUCT)) return 0;
    return getauxval(AT_HWCAP2) & HAS2_I8MM ? M5_ISA_NEON | M5_ISA_I8MM : M5_ISA_NEON;
}
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>

/* Every Apple Silicon core has the dot product, those from M2 on the matrix products too. */
uint32_t m5_isa_detect(void)
{
    int has = 0;
    size_t size = sizeof has;
    const bool i8mm = sysctlbyname("hw.optional.arm.FEAT_I8MM", &has, &size, NULL, 0) == 0 && has;
    return i8mm ? M5_ISA_NEON | M5_ISA_I8MM : M5_ISA_NEON;
}
#else
uint32_t m5_isa_detect(void)
{
    return 0;
}
#endif

const char *m5_isa_name(uint32_t isa)
{
    if (isa & M5_ISA_AMX) return "amx-int8";
    if (isa & M5_ISA_AVX512) return "avx512-vnni";
    if (isa & M5_ISA_AVX2) return "avx2";
    if (isa & M5_ISA_I8MM) return "neon-i8mm";
    if (isa & M5_ISA_NEON) return "neon-dotprod";
    return "ref";
}

void m5_kernels_init(m5_kernels *k, uint32_t mask)
{
    memset(k, 0, sizeof *k);
    k->isa = m5_isa_detect() & mask;
    m5_kernels_ref(k);
#if defined(__x86_64__)
    if (!(k->isa & M5_ISA_AVX2)) k->isa = 0; /* each level builds on the one below */
    if (k->isa & M5_ISA_AVX2) m5_kernels_avx2(k);
    if (!(k->isa & M5_ISA_AVX512)) k->isa &= ~M5_ISA_AMX;
    if (k->isa & M5_ISA_AVX512) m5_kernels_avx512(k, is_intel());
    if (k->isa & M5_ISA_AMX) m5_kernels_amx(k);
#elif defined(__aarch64__)
    if (!(k->isa & M5_ISA_NEON)) k->isa = 0;
    if (k->isa & M5_ISA_NEON) m5_kernels_neon(k);
    if (k->isa & M5_ISA_I8MM) m5_kernels_i8mm(k);
#endif
}
