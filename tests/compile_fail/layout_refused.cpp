// Wrong uses of layouts and handles.
#include <reshard/layout/slices.hpp>

using namespace reshard;

std::size_t use(const typed_layout<float>& layout) {
    const parameter<float> weight = layout.parameter("weight");
#if defined(SECTION_handle_of_another_type)
    // expect: parameter<double>
    const parameter<double> other = weight;
    return other.count;
#elif defined(SECTION_no_element_type)
    // expect: Element
    // expect: int
    using wrong = as_type<int>;
    return 0;
#else
    return weight.count + layout.parameter("norm", as<bf16>).count;
#endif
}
