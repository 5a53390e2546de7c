# SPDX-License-Identifier: Apache-2.0
m5_test(test_sampler SOURCES unit/test_sampler.c LIBS m5_engine LABELS unit)
m5_test(test_stop SOURCES unit/test_stop.c LIBS m5_engine LABELS unit)
