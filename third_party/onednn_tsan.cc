// Returns the reports that the thread sanitizer must suppress. The
// distribution's oneDNN and OpenMP libraries are not built with the sanitizer.
// It sees memory accesses of oneDNN's generated code and of the OpenMP runtime,
// through the functions that it intercepts (memcpy, malloc), but not their
// synchronisation.
extern "C" const char* __tsan_default_suppressions() {
  return "called_from_lib:libdnnl.so\n"
         "race:libdnnl.so\n"
         "called_from_lib:libgomp.so\n";
}
