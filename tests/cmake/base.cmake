# SPDX-License-Identifier: Apache-2.0
m5_test(test_base SOURCES unit/test_base.c LIBS m5_base)
m5_test(test_pool SOURCES unit/test_pool.c LIBS m5_base)
m5_test(test_machine SOURCES unit/test_machine.c LIBS m5_base)
