// Where in the source a collective was called.
#ifndef LOCKSTEP_COLLECTIVES_CALL_SITE_H_
#define LOCKSTEP_COLLECTIVES_CALL_SITE_H_

namespace lockstep {

// As a default argument, CallSite::Here() is the place of the call.
struct CallSite {
  static constexpr CallSite Here(const char* file = __builtin_FILE(),
                                 int line = __builtin_LINE()) {
    return {file, line};
  }

  const char* file = "";  // Lives for ever.
  int line = 0;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_CALL_SITE_H_
