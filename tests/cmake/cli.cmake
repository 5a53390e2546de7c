# SPDX-License-Identifier: Apache-2.0
find_program(M5_PYTHON python3)
if(M5_PYTHON AND TARGET m5-infer)
  add_test(NAME e2e_cli COMMAND ${M5_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/e2e/test_cli.py)
  set_tests_properties(e2e_cli PROPERTIES TIMEOUT 600 LABELS e2e ENVIRONMENT "M5_BINARY=$<TARGET_FILE:m5-infer>;M5_PATIENCE=$<IF:$<BOOL:${M5_SANITIZE}>,5,1>;PYTHONDONTWRITEBYTECODE=1")
endif()
