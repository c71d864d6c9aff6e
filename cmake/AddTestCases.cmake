# Writes the cases of a doctest program as tests of CTest, labelled with their suites: -DPROGRAM=.. -DOUTPUT=.. -P this.
# (Of doctest's own doctest_discover_tests, names with ';' come out as tests of nothing, which pass, and names with ','
# lose their labels.)
# -DTOGETHER=REGEX: of a file that it matches, the cases of no suite are one test, the slow ones another: where a program
# takes long to begin, as with sanitizers.
cmake_policy(VERSION 3.25)
execute_process(COMMAND ${PROGRAM} --list-test-cases --reporters=xml
  OUTPUT_VARIABLE rest RESULT_VARIABLE result ERROR_VARIABLE errors)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${PROGRAM} cannot list its cases (${result}): ${errors}")
endif()

set(script "")
# A name that selects nothing is no success, and what tests/main.cpp leaves out as a whole is not called passed.
set(properties "FAIL_REGULAR_EXPRESSION [==[test cases: +0 ]==] SKIP_REGULAR_EXPRESSION [==[SKIPPED: ]==]")
set(known "")
while(rest MATCHES "<TestCase name=\"([^\"]*)\"( testsuite=\"([^\"]*)\")? filename=\"([^\"]*)\"")
  set(found "${CMAKE_MATCH_0}")
  set(name "${CMAKE_MATCH_1}")
  set(suite "${CMAKE_MATCH_3}")
  set(file "${CMAKE_MATCH_4}")
  string(FIND "${rest}" "${found}" at)
  string(LENGTH "${found}" length)
  math(EXPR at "${at} + ${length}")
  string(SUBSTRING "${rest}" ${at} -1 rest)

  if(TOGETHER AND file MATCHES "${TOGETHER}")
    cmake_path(GET file FILENAME name)
    cmake_path(GET file PARENT_PATH folder)
    cmake_path(GET folder FILENAME folder)
    set(test "all of ${folder}/${name}")
    set(chosen --test-suite-exclude=slow)
    if(suite)
      string(APPEND test ", ${suite}")
      set(chosen "--test-suite=${suite}")
    endif()
    if(NOT test IN_LIST known)
      list(APPEND known ${test})
      string(APPEND script "add_test([==[${test}]==] [==[${PROGRAM}]==] [==[--source-file=*/${folder}/${name}]==] ${chosen})\n"
        "set_tests_properties([==[${test}]==] PROPERTIES LABELS \"${suite}\" ${properties})\n")
    endif()
    continue()
  endif()
  foreach(escape "&lt=<" "&gt=>" "&quot=\"" "&apos='" "&amp=&")
    string(REGEX MATCH "(.*)=(.)$" escape "${escape}")
    string(REPLACE "${CMAKE_MATCH_1};" "${CMAKE_MATCH_2}" name "${name}")
  endforeach()
  string(REPLACE "," "\\," filter "${name}")
  string(APPEND script "add_test([==[${name}]==] [==[${PROGRAM}]==] [==[--test-case=${filter}]==])\n"
    "set_tests_properties([==[${name}]==] PROPERTIES LABELS \"${suite}\" ${properties})\n")
endwhile()
file(WRITE ${OUTPUT} "${script}")
