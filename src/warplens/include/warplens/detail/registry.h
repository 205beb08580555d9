// The site sets of a program that nvcc built, for its own process: WARPLENS_SITES puts each into this list.
// In: static objects. Out: a list. No more than that, since each translation unit with sites includes it.
#ifndef WARPLENS_DETAIL_REGISTRY_H
#define WARPLENS_DETAIL_REGISTRY_H

namespace warplens {
namespace detail {

struct SiteSet {
  const char *name, *text;
  SiteSet* next;
  inline SiteSet(const char* its_name, const char* its_text);
};

inline SiteSet*& first_site_set() {
  static SiteSet* head = nullptr;
  return head;
}

inline SiteSet::SiteSet(const char* its_name, const char* its_text)
    : name(its_name), text(its_text), next(first_site_set()) {
  first_site_set() = this;
}

}  // namespace detail
}  // namespace warplens

#endif  // WARPLENS_DETAIL_REGISTRY_H
