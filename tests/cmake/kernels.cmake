# SPDX-License-Identifier: Apache-2.0
m5_test(checkkern SOURCES check/checkkern.c LIBS m5_kernels LABELS check)
