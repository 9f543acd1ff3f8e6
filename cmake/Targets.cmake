# SPDX-License-Identifier: Apache-2.0
# Flags shared by every target, and the one way a folder becomes a library.

find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
pkg_check_modules(FUSE3 REQUIRED IMPORTED_TARGET fuse3>=3.13)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson)
pkg_check_modules(LZ4 REQUIRED IMPORTED_TARGET liblz4)
pkg_check_modules(CURL REQUIRED IMPORTED_TARGET libcurl)
pkg_check_modules(CRYPTO REQUIRED IMPORTED_TARGET libcrypto)
pkg_check_modules(SSL REQUIRED IMPORTED_TARGET libssl)
pkg_check_modules(HIREDIS REQUIRED IMPORTED_TARGET hiredis>=0.14)
pkg_check_modules(XML2 REQUIRED IMPORTED_TARGET libxml-2.0)
pkg_check_modules(MICROHTTPD REQUIRED IMPORTED_TARGET libmicrohttpd>=0.9.75)
pkg_check_modules(GNUTLS REQUIRED IMPORTED_TARGET gnutls)
# Debian's inih, RocksDB and libs3 ship no usable pkg-config file on every release.
find_library(INIH_LIBRARY inih REQUIRED)
find_path(INIH_INCLUDE_DIR ini.h REQUIRED)
find_library(ROCKSDB_LIBRARY rocksdb REQUIRED)
find_path(ROCKSDB_INCLUDE_DIR rocksdb/c.h REQUIRED)
find_library(LIBS3_LIBRARY s3 REQUIRED)
find_path(LIBS3_INCLUDE_DIR libs3.h REQUIRED)

add_library(dctf_flags INTERFACE)
target_compile_definitions(dctf_flags INTERFACE
  _GNU_SOURCE _FILE_OFFSET_BITS=64 DCTF_VERSION="${PROJECT_VERSION}")
target_compile_options(dctf_flags INTERFACE
  -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wconversion
  -Wformat=2 -Wundef -Wvla -fno-common -fstack-protector-strong)
if(DCTF_WERROR)
  target_compile_options(dctf_flags INTERFACE -Werror)
endif()
if(DCTF_SANITIZE)
  target_compile_options(dctf_flags INTERFACE -fsanitize=${DCTF_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(dctf_flags INTERFACE -fsanitize=${DCTF_SANITIZE})
endif()

# dctf_library(NAME DEPENDS <lower libraries> SYSTEM <system libraries>)
# Sources are every *.c of the folder. A folder sees the folders in DEPENDS and
# no other, so an include that points the wrong way fails to build.
function(dctf_library name)
  cmake_parse_arguments(ARG "" "" "DEPENDS;SYSTEM" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.c)
  add_library(dctf_${name} STATIC ${sources})
  target_include_directories(dctf_${name} INTERFACE ${CMAKE_CURRENT_BINARY_DIR}/include)
  target_include_directories(dctf_${name} PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/include)
  file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/include)
  # Headers are reached as "folder/file.h" through a link in the build tree.
  file(CREATE_LINK ${CMAKE_CURRENT_SOURCE_DIR} ${CMAKE_CURRENT_BINARY_DIR}/include/${name} SYMBOLIC)
  target_link_libraries(dctf_${name} PUBLIC dctf_flags Threads::Threads)
  foreach(dep IN LISTS ARG_DEPENDS)
    target_link_libraries(dctf_${name} PUBLIC dctf_${dep})
  endforeach()
  target_link_libraries(dctf_${name} PRIVATE ${ARG_SYSTEM})
  dctf_check_headers(${name})
endfunction()

# Every header compiles alone: one generated file per header, never linked.
function(dctf_check_headers name)
  file(GLOB headers CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.h)
  set(units)
  foreach(header IN LISTS headers)
    get_filename_component(base ${header} NAME_WE)
    set(unit ${CMAKE_CURRENT_BINARY_DIR}/header_${base}.c)
    file(CONFIGURE OUTPUT ${unit} CONTENT "#include \"${name}/${base}.h\"\n#include \"${name}/${base}.h\"\ntypedef int dctf_header_${name}_${base};\n")
    list(APPEND units ${unit})
  endforeach()
  if(units)
    add_library(dctf_${name}_headers OBJECT ${units})
    target_link_libraries(dctf_${name}_headers PRIVATE dctf_${name})
  endif()
endfunction()
