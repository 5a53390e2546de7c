# SPDX-License-Identifier: Apache-2.0
m5_test(test_config SOURCES unit/test_config.c LIBS m5_model)
m5_test(test_weights SOURCES unit/test_weights.c LIBS m5_model)
