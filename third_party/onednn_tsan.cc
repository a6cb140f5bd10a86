// What the thread sanitizer must not report. It sees the memory accesses of
// oneDNN's generated code and of the OpenMP runtime through the functions that
// it intercepts (memcpy, malloc), but not their synchronisation, since the
// distribution's libraries are not built with it.
extern "C" const char* __tsan_default_suppressions() {
  return "called_from_lib:libdnnl.so\n"
         "race:libdnnl.so\n"
         "called_from_lib:libgomp.so\n";
}
