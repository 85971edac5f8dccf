// SPDX-License-Identifier: LGPL-2.1-or-later
// The source that `make demo` gives the compiler: the standard library's larger headers, and templates of
// our own that make it instantiate, inline and allocate registers for about two seconds.  The program
// itself is of no use.
#include <algorithm>
#include <array>
#include <functional>
#include <iostream>
#include <map>
#include <numeric>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace {

// One matrix type for each size, so that each product is a function of its own.
template <std::size_t Rows, std::size_t Columns> struct Matrix {
    std::array<double, Rows * Columns> cell{};

    double &at(std::size_t row, std::size_t column) { return cell[row * Columns + column]; }
    double at(std::size_t row, std::size_t column) const { return cell[row * Columns + column]; }
};

template <std::size_t Rows, std::size_t Inner, std::size_t Columns>
Matrix<Rows, Columns> operator*(const Matrix<Rows, Inner> &left, const Matrix<Inner, Columns> &right) {
    Matrix<Rows, Columns> product;
    for (std::size_t i = 0; i < Rows; i++)
        for (std::size_t j = 0; j < Columns; j++)
            for (std::size_t k = 0; k < Inner; k++)
                product.at(i, j) += left.at(i, k) * right.at(k, j);
    return product;
}

template <std::size_t N> double trace() {
    Matrix<N, N + 1> left;
    Matrix<N + 1, N> right;
    std::iota(left.cell.begin(), left.cell.end(), 1.0);
    std::iota(right.cell.begin(), right.cell.end(), 2.0);
    const auto product = left * right;
    double sum = 0;
    for (std::size_t i = 0; i < N; i++)
        sum += product.at(i, i);
    return sum;
}

template <std::size_t... N> double traces(std::index_sequence<N...>) { return (trace<N + 1>() + ...); }

// Sorted and searched containers of tuples, one kind for each length of key.
template <typename... Key> std::size_t distinct(const std::vector<std::tuple<Key...>> &keys) {
    std::map<std::tuple<Key...>, std::size_t> seen;
    for (const auto &key : keys)
        seen[key]++;
    auto sorted = keys;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    return seen.size() + static_cast<std::size_t>(std::unique(sorted.begin(), sorted.end()) - sorted.begin());
}

} // namespace

int main() {
    std::string line;
    std::set<std::string> words;
    while (std::cin >> line)
        words.insert(line);
    std::cout << words.size() << ' ' << traces(std::make_index_sequence<12>()) << ' '
              << distinct<int, int>({{1, 2}, {1, 2}}) << ' ' << distinct<int, std::string>({{1, "a"}}) << ' '
              << distinct<std::string, int, double>({{"a", 1, 1.0}, {"b", 2, 2.0}}) << '\n';
}
