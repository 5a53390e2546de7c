# SPDX-License-Identifier: Apache-2.0
# Checks of the repository itself.
find_program(M5_GIT git)
if(M5_GIT AND EXISTS ${CMAKE_SOURCE_DIR}/.git)
  add_test(NAME repo_style COMMAND ${CMAKE_SOURCE_DIR}/tools/style.sh)
  add_test(NAME repo_layers COMMAND ${CMAKE_SOURCE_DIR}/tools/layers.sh)
  set_tests_properties(repo_style repo_layers PROPERTIES SKIP_RETURN_CODE 77)
endif()

# Every header compiles alone.
file(GLOB_RECURSE headers RELATIVE ${CMAKE_SOURCE_DIR} CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/*.h ${CMAKE_SOURCE_DIR}/include/*.h)
list(FILTER headers EXCLUDE REGEX "kernels/(avx512|neon)_block.h") # only for files built for that instruction set
set(header_sources)
foreach(h ${headers})
  string(MAKE_C_IDENTIFIER ${h} id)
  set(src ${CMAKE_BINARY_DIR}/headers/${id}.c)
  string(REGEX REPLACE "^(src|include)/" "" inc ${h})
  file(CONFIGURE OUTPUT ${src} CONTENT "#include \"${inc}\"\n#include \"${inc}\"\nextern int m5_header_${id};\nint m5_header_${id};\n")
  list(APPEND header_sources ${src})
endforeach()
add_library(m5_headers OBJECT ${header_sources})
target_link_libraries(m5_headers PRIVATE m5_flags)
