# SPDX-License-Identifier: Apache-2.0
m5_test(test_metrics SOURCES unit/test_metrics.c LIBS m5_server LABELS unit)
find_package(Python3 COMPONENTS Interpreter)
# One word after another: a list would end at its first item in a property that is a list itself.
string(JOIN " " emulator ${CMAKE_CROSSCOMPILING_EMULATOR})
if(Python3_FOUND)
  add_test(NAME e2e_server COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/e2e/test_server.py)
  set(patience 1)
  if(M5_SANITIZE OR CMAKE_CROSSCOMPILING)
    set(patience 10)
  endif()
  set_tests_properties(e2e_server PROPERTIES TIMEOUT 600 LABELS e2e ENVIRONMENT
                       "M5_BINARY=$<TARGET_FILE:m5-infer>;M5_PATIENCE=${patience};M5_EMULATOR=${emulator}")
  add_test(NAME e2e_answers COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/e2e/test_answers.py)
  set_tests_properties(e2e_answers PROPERTIES TIMEOUT 900 LABELS e2e ENVIRONMENT
                       "M5_BINARY=$<TARGET_FILE:m5-infer>;M5_PATIENCE=${patience};M5_EMULATOR=${emulator}")
  add_test(NAME e2e_lossy COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/e2e/test_lossy.py)
  set_tests_properties(e2e_lossy PROPERTIES TIMEOUT 600 LABELS e2e ENVIRONMENT
                       "M5_BINARY=$<TARGET_FILE:m5-infer>;M5_PATIENCE=${patience};M5_EMULATOR=${emulator}")
endif()
m5_test(test_answer SOURCES unit/test_answer.c LIBS m5_server m5_text m5_base LABELS unit)
