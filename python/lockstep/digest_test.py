"""Tests of digests and sums."""

import itertools
import os
import sys
import unittest

import numpy as np

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from lockstep import digest

BLOCK = digest.BLOCK
SIZES = (0, 1, 2, 3, 5, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7)


def values(size, seed=1):
    return np.random.RandomState(seed).standard_normal(size).astype(np.float32)


class DigestTest(unittest.TestCase):
    def test_equal_bytes_have_equal_digests(self):
        for size in SIZES:
            array = values(size)
            self.assertEqual(digest.digest(array), digest.digest(array.copy()))

    def test_is_the_sum_of_words_times_weights(self):
        words = np.arange(1, 10, dtype=np.uint32)
        expected = sum(int(w) * int(k) for w, k in zip(words, digest.WEIGHTS))
        expected = (words.nbytes * digest.ODD + expected) % 2**64
        self.assertEqual(digest.digest(words), "%016x" % expected)

    def test_each_bit_of_each_word_counts(self):
        words = np.arange(33, dtype=np.uint32)
        found = {digest.digest(words)}
        for place, bit in itertools.product(range(33), range(32)):
            changed = words.copy()
            changed[place] ^= np.uint32(1 << bit)
            found.add(digest.digest(changed))
        self.assertEqual(len(found), 33 * 32 + 1)

    def test_two_changed_signs_do_not_cancel(self):
        """The highest bits of two words cancel in hashes of 32 bits with odd weights."""
        array = values(40)
        found = {digest.digest(array)}
        for pair in itertools.combinations(range(40), 2):
            changed = array.copy()
            changed[list(pair)] *= -1
            found.add(digest.digest(changed))
        self.assertEqual(len(found), 40 * 39 // 2 + 1)

    def test_order_within_and_between_blocks_counts(self):
        array = values(2 * BLOCK)
        swapped = np.concatenate([array[BLOCK:], array[:BLOCK]])
        rolled = np.roll(array, 1)
        self.assertEqual(len({digest.digest(a) for a in (array, swapped, rolled)}), 3)

    def test_size_counts(self):
        self.assertEqual(len({digest.digest(np.zeros(n, np.uint8)) for n in range(9)}), 9)

    def test_bytes_that_are_not_whole_words(self):
        array = np.arange(1, 8, dtype=np.uint8)
        for start in range(7):
            part = array[start:]
            self.assertEqual(digest.digest(part), digest.digest(part.copy()))


class SumsTest(unittest.TestCase):
    def test_equal_numpy_in_float64(self):
        for size in SIZES:
            array = values(size)
            exact = array.astype(np.float64)
            weights = np.resize(digest.PROJECTION, size)
            total, squares, projection = digest.sums(array)
            # Each sum of n terms, in any order, is within n rounding errors of the sum of |x|.
            unit = size * 2.0**-53
            self.assertLessEqual(abs(total - exact.sum()), 2 * unit * np.abs(exact).sum())
            self.assertLessEqual(abs(squares - (exact**2).sum()), 2 * unit * (exact**2).sum())
            self.assertLessEqual(
                abs(projection - (exact * weights).sum()), 2 * unit * np.abs(exact * weights).sum()
            )

    def test_projection_weights_differ_and_lie_in_their_range(self):
        self.assertEqual(len(set(digest.PROJECTION)), BLOCK)
        self.assertLess(np.abs(digest.PROJECTION).max(), 1.0 + 2**-50)
        self.assertLess(abs(digest.PROJECTION.mean()), 0.02)

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
