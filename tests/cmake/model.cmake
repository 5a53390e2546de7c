# SPDX-License-Identifier: Apache-2.0
m5_test(test_config SOURCES unit/test_config.c LIBS m5_model)
m5_test(test_weights SOURCES unit/test_weights.c LIBS m5_model)
# Minutes under emulation.
m5_test(test_model SOURCES unit/test_model.c LIBS m5_model TIMEOUT 1200)
m5_test(test_gguf SOURCES unit/test_gguf.c LIBS m5_model)
m5_test(test_mix SOURCES unit/test_mix.c LIBS m5_backend TIMEOUT 1200)
m5_test(test_safetensors SOURCES unit/test_safetensors.c LIBS m5_model)
m5_test(test_quantised SOURCES unit/test_quantised.c LIBS m5_model TIMEOUT 300)
