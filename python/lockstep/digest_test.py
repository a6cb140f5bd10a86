"""Tests of digests and sums."""

import itertools
import os
import sys
import unittest

import numpy as np

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from lockstep import digest
from lockstep.checks import parameters

ROW = digest.COLUMNS
SIZES = (0, 1, 2, 3, 5, 63, 64, 65, ROW - 1, ROW, ROW + 1, 2 * ROW, 2 * ROW + 1, 9 * ROW + 7)
GROUP = digest.TERMS * ROW
LARGE = (GROUP - 1, GROUP, 2 * GROUP + ROW + 3, (digest.GROUPS + 1) * GROUP + 5)


def values(size, seed=1):
    return np.random.RandomState(seed).standard_normal(size).astype(np.float32)


class DigestTest(unittest.TestCase):
    def test_equal_bytes_have_equal_digests(self):
        for size in SIZES:
            array = values(size)
            self.assertEqual(digest.digest(array), digest.digest(array.copy()))

    def expected_rest(self, size, words):
        folded = [w ^ (w >> 29) for w in words]
        hashed = sum(w * int(k) for w, k in zip(folded, digest.WEIGHTS))
        return (size * digest.ODD + hashed) % 2**64

    def test_is_the_sum_of_folded_words_times_weights(self):
        words = np.arange(1, 10, dtype=np.uint64) * np.uint64(digest.ODD)
        expected = self.expected_rest(words.nbytes, words.tolist())
        self.assertEqual(digest.digest(words), "%016x" % expected)

    def test_sums_the_rows_of_a_matrix_that_begins_two_bytes_later(self):
        rows, words = 3, np.arange(1, 3 * ROW + 2, dtype=np.uint64) * np.uint64(digest.ODD)
        matrix = np.frombuffer(words.tobytes()[2:], np.uint64, rows * ROW).reshape(rows, ROW)
        weights = digest._make_weights(2, 2 * rows)[:rows] | np.uint64(1)
        columns = (matrix * weights[:, None]).sum(axis=0)
        value = self.expected_rest(words.nbytes, columns.tolist())
        rest = np.frombuffer(words.tobytes()[-6:] + words.tobytes()[:2], np.uint64).tolist()
        self.assertEqual(digest.digest(words), "%016x" % self.expected_rest(value, rest))

    def test_each_bit_of_each_word_counts(self):
        words = np.arange(33, dtype=np.uint32)
        found = {digest.digest(words)}
        for place, bit in itertools.product(range(33), range(32)):
            changed = words.copy()
            changed[place] ^= np.uint32(1 << bit)
            found.add(digest.digest(changed))
        self.assertEqual(len(found), 33 * 32 + 1)

    def test_changed_signs_do_not_cancel(self):
        """The highest bits of two words cancel in a hash of words that are not folded."""
        array = values(40)
        found = {digest.digest(array), digest.digest(-array)}
        for pair in itertools.combinations(range(40), 2):
            changed = array.copy()
            changed[list(pair)] *= -1
            found.add(digest.digest(changed))
        self.assertEqual(len(found), 40 * 39 // 2 + 2)

    def test_changed_signs_and_exponents_of_every_nth_number_do_not_cancel(self):
        for kind in (np.float16, np.float32, np.float64):
            array = np.abs(values(16 * ROW)).astype(kind)
            found = {digest.digest(array)}
            for step, first, factor in itertools.product((1, 2, 4), range(4), (-1, 0.5, 2)):
                changed = array.copy()
                changed[first::step] *= kind(factor)
                found.add(digest.digest(changed))
            self.assertEqual(len(found), 1 + 3 * 12)

    def test_each_word_of_a_matrix_counts(self):
        array = np.zeros(5 * ROW + 3, np.uint32)
        found = {digest.digest(array)}
        for place in range(0, array.size, 7):
            array[place] ^= 1 << 31
            found.add(digest.digest(array))
            array[place] = 0
        self.assertEqual(len(found), 1 + (array.size + 6) // 7)

    def test_order_within_and_between_blocks_counts(self):
        array = values(8 * ROW)
        swapped = np.concatenate([array[2 * ROW :], array[: 2 * ROW]])
        rolled = np.roll(array, 1)
        self.assertEqual(len({digest.digest(a) for a in (array, swapped, rolled)}), 3)

    def test_size_counts(self):
        self.assertEqual(len({digest.digest(np.zeros(n, np.uint8)) for n in range(9)}), 9)

    def test_bytes_at_any_address_and_of_any_number(self):
        array = np.arange(8 * ROW + 21, dtype=np.uint64).view(np.uint8)[: 8 * ROW + 21]
        array *= 37
        for start in range(17):
            for size in (array.size - start, 8 * ROW, 7, 0):
                part = array[start : start + size]
                self.assertEqual(digest.digest(part), digest.digest(part.copy()))


class SumsTest(unittest.TestCase):
    def test_equal_numpy_in_float64(self):
        for size, kind in itertools.product(SIZES + LARGE, (np.float32, np.float64)):
            array = values(size).astype(kind)
            exact = array.astype(np.float64)
            weights = np.resize(digest.PROJECTION, size)
            total, squares, projection = digest.sums(array)
            self.assertEqual(digest.linear_sums(array), [total, projection])
            # A sum of n terms, in any order, is within n rounding errors of the sum of |x|.
            unit, square_unit = size * 2.0**-53, size * 2.0**-53
            if kind == np.float32:
                unit += digest.TERMS * 2.0**-24 * (size >= GROUP)
                square_unit += digest.RUN * 2.0**-24 * (size >= ROW)
            self.assertLessEqual(abs(total - exact.sum()), 2 * unit * np.abs(exact).sum())
            self.assertLessEqual(
                abs(squares - (exact**2).sum()), 2 * square_unit * (exact**2).sum()
            )
            self.assertLessEqual(
                abs(projection - (exact * weights).sum()), 2 * unit * np.abs(exact * weights).sum()
            )

    def test_whole_numbers_have_exact_sums(self):
        """Each row, group and run counts once: sums of small whole numbers round nowhere."""
        for size in SIZES + LARGE:
            array = (np.arange(size) % 251 - 100).astype(np.float32)
            exact = array.astype(np.int64)
            self.assertEqual(digest.sums(array)[:2], [exact.sum(), (exact**2).sum()])

    def test_an_accumulated_gradient_is_known_in_spite_of_its_roundings(self):
        """Each partial sum of one pass rounds down seven times, and each of the gradient up.

        A column of the first pass is 1 and seven numbers just below half of its rounding unit. The
        second pass lifts these just above it.
        """
        half = 2.0**-24
        first, second = np.ones((2, 64, digest.TERMS, ROW), np.float32)
        first[:, 1:] = half * (1 - 2.0**-10)
        second[:, 0], second[:, 1:] = 0, half * 2.0**-9
        gradient = first + second
        total, squares, projection = digest.sums(gradient)
        parts = [digest.linear_sums(part) for part in (first, second)]
        local = [2, *(sum(column) for column in zip(*parts))]
        self.assertGreater(total - local[1], 13 * half * np.abs(gradient).sum())
        recorded = ["", total, squares, projection]
        self.assertTrue(parameters.is_own(recorded, local, gradient.size))
        # A rank's own gradient whose largest number of each column differs by 1/50000.
        local[1] += 64 * ROW / 50000
        self.assertFalse(parameters.is_own(recorded, local, gradient.size))
        self.assertEqual(parameters.SUM_ROUNDINGS, digest.TERMS)

    def test_huge_and_tiny_numbers_have_sums(self):
        with np.errstate(all="raise"):
            for scale in (2.0**-100, 2.0**-60, 2.0**70, 2.0**127):
                array = np.full(2 * GROUP + 3, scale, np.float32)
                total, squares, _ = digest.sums(array)
                self.assertEqual([total, squares], [array.size * scale, array.size * scale**2])

    def test_sums_of_parts_add_up_to_those_of_the_whole(self):
        for size in (9 * ROW + 7, 2 * GROUP + ROW + 3):
            array = values(size)
            # Sums of parts are in another order: see above.
            bound = 2 * 2.0**-24 * max(digest.TERMS, digest.RUN) * np.abs(array).sum()
            for cut in (0, 1, ROW - 1, ROW, 3 * ROW + 5, GROUP, size):
                parts = [digest.sums(array[:cut]), digest.sums(array[cut:], cut)]
                added = [sum(part[k] for part in parts) for k in range(3)]
                np.testing.assert_allclose(added, digest.sums(array), rtol=0, atol=bound)

    def test_projection_weights_differ_and_lie_in_their_range(self):
        self.assertEqual(len(set(digest.PROJECTION)), ROW)
        self.assertLess(np.abs(digest.PROJECTION).max(), 1.0 + 2**-50)
        # Four standard errors of a mean of ROW values that are uniform in [-1, 1).
        self.assertLess(abs(digest.PROJECTION.mean()), 4 / (3 * ROW) ** 0.5)

    def test_nan_and_infinity_are_kept(self):
        self.assertTrue(np.isnan(digest.sums(np.array([1, np.nan], np.float32))[0]))
        self.assertEqual(digest.sums(np.array([np.inf, 1], np.float32))[0], np.inf)


class RowDigestsTest(unittest.TestCase):
    def test_equal_rows_have_equal_digests_in_any_batch(self):
        images, labels = values(60).reshape(6, 10), np.arange(6)
        whole = digest.row_digests([images, labels])
        self.assertEqual(len(set(whole)), 6)
        order = [3, 1, 5]
        self.assertEqual(
            digest.row_digests([images[order], labels[order]]), [whole[i] for i in order]
        )

    def test_is_the_digest_of_each_row(self):
        for width in (0, 1, 3, 8, digest.SHORT_ROW, digest.SHORT_ROW + 1):
            array = values(4 * 5 * width).view(np.uint8).reshape(5, -1)[:, : 4 * width]
            array = np.ascontiguousarray(array[:, :width])
            self.assertEqual(digest.row_digests([array]), [digest.digest(row) for row in array])

    def test_each_array_counts(self):
        images, labels = np.zeros((2, 3), np.uint8), np.array([0, 1], np.uint8)
        self.assertEqual(len(set(digest.row_digests([images, labels]))), 2)


class CombineTest(unittest.TestCase):
    def test_order_and_gaps_count(self):
        a, b = digest.digest(values(3)), digest.digest(values(4))
        lists = ([], [None], [a], [a, b], [b, a], [a, None], [None, a], [a, a])
        self.assertEqual(len({digest.combine(digests) for digests in lists}), len(lists))


if __name__ == "__main__":
    unittest.main()
