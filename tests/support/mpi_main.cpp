// The main of tests under mpirun. MPI starts at the thread level named by RESHARD_TEST_THREAD_LEVEL; a failed REQUIRE,
// an escaped exception or a case launched on too few ranks aborts the job, since the other ranks would wait for ever;
// failures are counted over all ranks, and only failing ranks print.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
#include <mpi.h>

#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace {

/// What the ranks of one launch know of their run so far.
struct run_record {
    int rank = 0;
    int size = 1;
    std::ostringstream output;
    std::vector<int> failed;  // one entry a case, in order
};

run_record* record = nullptr;

[[noreturn]] void abort_job(const std::string& why) {
    std::cerr << record->output.str() << "rank " << record->rank << " of " << record->size << ": " << why
              << "; the job ends here" << std::endl;
    MPI_Abort(MPI_COMM_WORLD, 1);
    std::abort();
}

/// Ends the job where the other ranks could not go on, and keeps one verdict for each case.
class job_listener : public doctest::IReporter {
public:
    explicit job_listener(const doctest::ContextOptions&) {}

    void test_case_start(const doctest::TestCaseData& test) override {
        name_ = test.m_name;
        const std::string suite = test.m_test_suite;
        const std::string prefix = "at least ";
        if (suite.rfind(prefix, 0) != 0) return;
        const int needed = std::atoi(suite.c_str() + prefix.size());
        if (needed > record->size) abort_job("case \"" + name_ + "\" needs " + suite);
    }
    void log_assert(const doctest::AssertData& check) override {
        if (check.m_failed && (check.m_at & doctest::assertType::is_require) != 0)
            abort_job("a REQUIRE failed in case \"" + name_ + "\": " + check.m_expr);
    }
    void test_case_exception(const doctest::TestCaseException& error) override {
        abort_job("an exception left case \"" + name_ + "\": " + error.error_string.c_str());
    }
    void test_case_end(const doctest::CurrentTestCaseStats& stats) override {
        record->failed.push_back(stats.testCaseSuccess ? 0 : 1);
    }

    void report_query(const doctest::QueryData&) override {}
    void test_run_start() override {}
    void test_run_end(const doctest::TestRunStats&) override {}
    void test_case_reenter(const doctest::TestCaseData&) override {}
    void subcase_start(const doctest::SubcaseSignature&) override {}
    void subcase_end() override {}
    void log_message(const doctest::MessageData&) override {}
    void test_case_skipped(const doctest::TestCaseData&) override {}

private:
    std::string name_;
};

REGISTER_LISTENER("job", 1, job_listener);

int thread_level() {
    const char* name = std::getenv("RESHARD_TEST_THREAD_LEVEL");
    const std::string wanted = name == nullptr ? "multiple" : name;
    if (wanted == "single") return MPI_THREAD_SINGLE;
    if (wanted == "funneled") return MPI_THREAD_FUNNELED;
    if (wanted == "serialized") return MPI_THREAD_SERIALIZED;
    if (wanted == "multiple") return MPI_THREAD_MULTIPLE;
    std::cerr << "RESHARD_TEST_THREAD_LEVEL is " << wanted << "; single, funneled, serialized, multiple are known\n";
    std::exit(2);
}

/// Rank 0 prints what failing ranks wrote, in rank order, and the count over all ranks; true where all passed.
bool report(int exit_code) {
    const int cases = static_cast<int>(record->failed.size());
    int most = cases;
    MPI_Allreduce(&cases, &most, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    record->failed.resize(static_cast<std::size_t>(most), 1);  // a rank that ran fewer cases failed the others
    std::vector<int> failed(record->failed.size());
    MPI_Allreduce(record->failed.data(), failed.data(), most, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    int worst = exit_code != 0 ? 1 : 0;
    const int own = worst;
    MPI_Allreduce(&own, &worst, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);

    const std::string text = own != 0 ? record->output.str() : std::string{};
    if (record->rank != 0) {
        MPI_Send(text.data(), static_cast<int>(text.size()), MPI_CHAR, 0, 0, MPI_COMM_WORLD);
    } else {
        for (int from = 0; from < record->size; ++from) {
            std::string theirs = text;
            if (from != 0) {
                MPI_Status status;
                int length = 0;
                MPI_Probe(from, 0, MPI_COMM_WORLD, &status);
                MPI_Get_count(&status, MPI_CHAR, &length);
                theirs.resize(static_cast<std::size_t>(length));
                MPI_Recv(theirs.data(), length, MPI_CHAR, from, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            }
            if (!theirs.empty()) std::cout << "rank " << from << " of " << record->size << ":\n" << theirs;
        }
        int bad = 0;
        for (const int each : failed) bad += each;
        std::cout << "[doctest] test cases: " << most << " | " << most - bad << " passed | " << bad
                  << " failed | 0 skipped" << std::endl;
    }
    return worst == 0 && most > 0;
}

}  // namespace

int main(int argc, char** argv) {
    const int wanted = thread_level();
    int provided = MPI_THREAD_SINGLE;
    MPI_Init_thread(&argc, &argv, wanted, &provided);
    run_record mine;
    record = &mine;
    MPI_Comm_rank(MPI_COMM_WORLD, &mine.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &mine.size);
    if (provided < wanted) abort_job("MPI gives a lower thread level than asked for");

    doctest::Context context(argc, argv);
    context.setOption("no-colors", true);
    context.setCout(&mine.output);
    const int exit_code = context.run();
    const bool passed = report(exit_code);
    MPI_Finalize();
    return passed ? 0 : 1;
}
