# SPDX-License-Identifier: Apache-2.0
m5_test(test_sampler SOURCES unit/test_sampler.c LIBS m5_engine LABELS unit)
m5_test(test_stop SOURCES unit/test_stop.c LIBS m5_engine LABELS unit)
# The fake layer stands in front of the real libraries, so none of their objects is linked.
m5_test(test_engine SOURCES unit/test_engine.c unit/fake_model.c LIBS m5_engine LABELS unit TIMEOUT 120)
m5_test(test_prefix SOURCES unit/test_prefix.c LIBS m5_engine LABELS unit TIMEOUT 120)
m5_test(test_engine_model SOURCES unit/test_engine_model.c LIBS m5_engine LABELS unit TIMEOUT 300)
m5_test(test_store SOURCES unit/test_store.c LIBS m5_engine LABELS unit TIMEOUT 120)
m5_test(test_marks SOURCES unit/test_marks.c LIBS m5_engine LABELS unit)
# Threads that spin for each other crawl under emulation.
if(CMAKE_CROSSCOMPILING)
  set(traffic_rounds 8)
else()
  set(traffic_rounds 200)
endif()
m5_test(test_traffic SOURCES unit/test_traffic.c LIBS m5_engine LABELS unit TIMEOUT 300 ARGS ${traffic_rounds})
m5_test(test_replay SOURCES unit/test_replay.c LIBS m5_engine LABELS unit)
# Thousands of answers: one family takes minutes under the thread sanitizer, eleven take ten under the others; emulation takes longer than anything else.
if(NOT CMAKE_CROSSCOMPILING)
  if(M5_SANITIZE MATCHES "thread")
    set(spec_families 1)
  elseif(M5_SANITIZE)
    set(spec_families 5)
  else()
    set(spec_families 11)
  endif()
  m5_test(test_spec SOURCES unit/test_spec.c LIBS m5_engine LABELS unit TIMEOUT 900 ARGS ${spec_families})
  # Long answers are compared by hand (docs/SPEED.md); here a short run keeps the program alive.
  m5_test(checkspec SOURCES check/checkspec.c LIBS m5_engine LABELS check TIMEOUT 300
          ARGS ${CMAKE_CURRENT_SOURCE_DIR}/vectors/models/qwen3_5_mtp --prompts 4 --tokens 64 --max-k 3 --parallel 3 --jobs 2)
endif()
m5_test(test_calib SOURCES unit/test_calib.c LIBS m5_engine LABELS unit TIMEOUT 900)
