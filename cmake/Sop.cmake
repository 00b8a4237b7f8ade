# The project's own words for its lists of files.

# sop_room(status.c log.c): files of the room whose CMakeLists.txt this is.
function(sop_room)
  foreach(f ${ARGN})
    target_sources(sop PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/${f})
  endforeach()
endfunction()

# sop_op(rmsnorm C rmsnorm.c rmsnorm_ref.c AVX2 rmsnorm_avx2.c): one operator's files. The word
# before a file says which flags it gets.
set(SOP_FLAGS_AVX2 -mavx2 -mfma -mf16c)
set(SOP_FLAGS_AVX512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c)
set(SOP_FLAGS_VNNI -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mfma -mf16c)
set(SOP_FLAGS_AMX -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c -mamx-tile -mamx-bf16)
function(sop_op name)
  cmake_parse_arguments(PARSE_ARGV 1 A "" "" "C;AVX2;AVX512;VNNI;AMX;SM80;SM90")
  foreach(set C AVX2 AVX512 VNNI AMX SM80 SM90)
    list(TRANSFORM A_${set} PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/${name}/")
  endforeach()
  target_sources(sop PRIVATE ${A_C})
  set(references ${A_C}) # most of the time of a check is theirs
  list(FILTER references INCLUDE REGEX "_ref\\.c$")
  set_property(SOURCE ${references} TARGET_DIRECTORY sop APPEND PROPERTY COMPILE_OPTIONS -O3)
  foreach(isa AVX2 AVX512 VNNI AMX)
    target_sources(sop PRIVATE ${A_${isa}})
    set_property(SOURCE ${A_${isa}} TARGET_DIRECTORY sop
                 APPEND PROPERTY COMPILE_OPTIONS ${SOP_FLAGS_${isa}} -O3 -Wno-conversion)
  endforeach()
  if(SOP_CUDA)
    foreach(sm SM80 SM90)
      target_sources(sop PRIVATE ${A_${sm}})
      set_property(SOURCE ${A_${sm}} TARGET_DIRECTORY sop
                   APPEND PROPERTY COMPILE_OPTIONS ${SOP_FLAGS_${sm}})
    endforeach()
  endif()
endfunction()

# sop_texts(sop op_texts ${files}): the files' texts under their names without ending, in the array
# `const sop_text op_texts[]` (base/texts.h) of a target.
function(sop_texts target symbol)
  set(source "#include \"base/texts.h\"\n\nextern const sop_text ${symbol}[];\n")
  string(APPEND source "const sop_text ${symbol}[] = {\n")
  foreach(file ${ARGN})
    get_filename_component(name ${file} NAME_WLE)
    file(READ ${file} text)
    string(REPLACE "\\" "\\\\" text "${text}")
    string(REPLACE "\"" "\\\"" text "${text}")
    string(REPLACE "\n" "\\n\"\n     \"" text "${text}")
    string(APPEND source "    {\"${name}\",\n     \"${text}\"},\n")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  endforeach()
  string(APPEND source "    {0, 0},\n};\n")
  file(CONFIGURE OUTPUT ${symbol}.c CONTENT "${source}" @ONLY)
  target_sources(${target} PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/${symbol}.c)
endfunction()

# sop_test_program(check_ops check_ops.c [more.c]): a program with the insides of the library.
function(sop_test_program name)
  if(NOT BUILD_TESTING)
    return()
  endif()
  add_executable(${name} ${ARGN})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
  target_compile_definitions(${name} PRIVATE _GNU_SOURCE
    SOP_TEST_DATA="${CMAKE_SOURCE_DIR}/tests/data")
  target_compile_options(${name} PRIVATE ${SOP_WARN} -ffp-contract=off)
  target_link_libraries(${name} PRIVATE superop_static)
endfunction()

# sop_test(status_test status_test.c [more.c]): such a program that ctest runs under its name.
function(sop_test name)
  sop_test_program(${name} ${ARGN})
  if(BUILD_TESTING)
    add_test(NAME ${name} COMMAND ${name})
  endif()
endfunction()
