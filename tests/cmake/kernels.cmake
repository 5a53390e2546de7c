# SPDX-License-Identifier: Apache-2.0
m5_test(checkkern SOURCES check/checkkern.c LIBS m5_kernels LABELS check)
m5_test(checkrows SOURCES check/checkrows.c LIBS m5_backend LABELS check)
m5_test(test_quant SOURCES unit/test_quant.c LIBS m5_kernels)
