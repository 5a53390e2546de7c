# SPDX-License-Identifier: Apache-2.0
# m5_fuzz(<room> LIBS ... [MUTATIONS n]): tests/fuzz/fuzz_<room>.c with its corpus tests/fuzz/corpus/<room>/. A libFuzzer program with M5_FUZZ=ON, else a test that runs
# the corpus and mutations of it.
function(m5_fuzz room)
  cmake_parse_arguments(A "" "MUTATIONS" "LIBS" ${ARGN})
  set(src ${CMAKE_CURRENT_SOURCE_DIR}/fuzz/fuzz_${room}.c)
  set(corpus ${CMAKE_CURRENT_SOURCE_DIR}/fuzz/corpus/${room})
  if(NOT EXISTS ${src} OR NOT EXISTS ${corpus})
    message(FATAL_ERROR "fuzz target ${room} needs ${src} and ${corpus}")
  endif()
  if(NOT A_MUTATIONS)
    set(A_MUTATIONS 200)
  endif()
  # The entry point is declared by no header.
  set_source_files_properties(${src} PROPERTIES COMPILE_OPTIONS -Wno-missing-prototypes)
  if(M5_FUZZ)
    add_executable(fuzz_${room} ${src})
    target_link_options(fuzz_${room} PRIVATE -fsanitize=fuzzer)
    target_link_libraries(fuzz_${room} PRIVATE ${A_LIBS} m5_flags)
    set_target_properties(fuzz_${room} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  else()
    m5_test(fuzz_${room} SOURCES ${src} fuzz/run_corpus.c LIBS ${A_LIBS} m5_base ARGS -n ${A_MUTATIONS} ${corpus} LABELS fuzz)
  endif()
endfunction()

m5_fuzz(json LIBS m5_base)
m5_fuzz(config LIBS m5_model)
