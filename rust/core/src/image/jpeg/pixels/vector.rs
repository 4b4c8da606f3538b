//! `transform_passes!`: the two passes of the inverse DCT for a width of registers.
//!
//! A 128-bit lane holds a row of a block, as 16-bit numbers. A file that uses the macro has imported
//! the instructions under the names below.

macro_rules! transform_passes {
    ($vector:ty, $features:literal) => {
        #[inline]
        #[target_feature(enable = $features)]
        fn factors([a, b]: [i16; 2]) -> $vector {
            set32(i32::from(b) << 16 | i32::from(a.cast_unsigned()))
        }

        /// Transforms columns, and drops bits from the results. With `SPARSE`, the last four rows are
        /// zero, whatever they hold.
        #[inline]
        #[target_feature(enable = $features)]
        fn pass<const SPARSE: bool, const SECOND: bool>(rows: &[$vector; 8]) -> [$vector; 8] {
            let half = set32(if SECOND { 1 << 17 } else { 1 << 10 });
            let mut sums = [[half; 8]; 2];
            for high in [false, true] {
                let (even, odd) = if SPARSE { sparse_half(rows, half, high) } else { full_half(rows, half, high) };
                let sums = &mut sums[usize::from(high)];
                for n in 0..4 {
                    let (sum, difference) = (add32(even[n], odd[n]), sub32(even[n], odd[n]));
                    sums[n] = if SECOND { shift32::<18>(sum) } else { shift32::<11>(sum) };
                    sums[7 - n] = if SECOND { shift32::<18>(difference) } else { shift32::<11>(difference) };
                }
            }
            let mut out = *rows;
            for n in 0..8 {
                out[n] = pack32(sums[0][n], sums[1][n]);
            }
            out
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn pairs(a: $vector, b: $vector, high: bool) -> $vector {
            if high { high16(a, b) } else { low16(a, b) }
        }

        /// Returns the sums of the even inputs and of the odd ones, for one half of the columns.
        #[inline]
        #[target_feature(enable = $features)]
        fn full_half(rows: &[$vector; 8], half: $vector, high: bool) -> ([$vector; 4], [$vector; 4]) {
            let ends = pairs(add16(rows[0], rows[4]), sub16(rows[0], rows[4]), high);
            let first = add32(multiply(ends, factors([1 << 13, 0])), half);
            let second = add32(multiply(ends, factors([0, 1 << 13])), half);
            let even = pairs(rows[2], rows[6], high);
            let third = multiply(even, factors(EVEN[0]));
            let fourth = multiply(even, factors(EVEN[1]));

            let both = pairs(add16(rows[7], rows[3]), add16(rows[5], rows[1]), high);
            let (a, b) = (multiply(both, factors(BOTH[0])), multiply(both, factors(BOTH[1])));
            let outer = pairs(rows[7], rows[1], high);
            let inner = pairs(rows[5], rows[3], high);
            let odd = [
                add32(multiply(outer, factors(OUTER[1])), b),
                add32(multiply(inner, factors(INNER[1])), a),
                add32(multiply(inner, factors(INNER[0])), b),
                add32(multiply(outer, factors(OUTER[0])), a),
            ];
            ([add32(first, third), add32(second, fourth), sub32(second, fourth), sub32(first, third)], odd)
        }

        /// As `full_half`, if the last four rows are zero.
        #[inline]
        #[target_feature(enable = $features)]
        fn sparse_half(rows: &[$vector; 8], half: $vector, high: bool) -> ([$vector; 4], [$vector; 4]) {
            let even = pairs(rows[0], rows[2], high);
            let odd = pairs(rows[1], rows[3], high);
            let [[third, _], [fourth, _]] = EVEN;
            let [[a3, a1], [b3, b1]] = BOTH;
            (
                [
                    add32(multiply(even, factors([1 << 13, third])), half),
                    add32(multiply(even, factors([1 << 13, fourth])), half),
                    add32(multiply(even, factors([1 << 13, -fourth])), half),
                    add32(multiply(even, factors([1 << 13, -third])), half),
                ],
                [
                    multiply(odd, factors([OUTER[1][1] + b1, b3])),
                    multiply(odd, factors([a1, INNER[1][1] + a3])),
                    multiply(odd, factors([b1, INNER[0][1] + b3])),
                    multiply(odd, factors([OUTER[0][1] + a1, a3])),
                ],
            )
        }

        /// Exchanges rows and columns.
        #[inline]
        #[target_feature(enable = $features)]
        fn turn(r: &[$vector; 8]) -> [$vector; 8] {
            let a = [low16(r[0], r[1]), low16(r[2], r[3]), low16(r[4], r[5]), low16(r[6], r[7])];
            let b = [high16(r[0], r[1]), high16(r[2], r[3]), high16(r[4], r[5]), high16(r[6], r[7])];
            let c = [low32(a[0], a[1]), low32(a[2], a[3]), high32(a[0], a[1]), high32(a[2], a[3])];
            let d = [low32(b[0], b[1]), low32(b[2], b[3]), high32(b[0], b[1]), high32(b[2], b[3])];
            [
                low64(c[0], c[1]),
                high64(c[0], c[1]),
                low64(c[2], c[3]),
                high64(c[2], c[3]),
                low64(d[0], d[1]),
                high64(d[0], d[1]),
                low64(d[2], d[3]),
                high64(d[2], d[3]),
            ]
        }

        /// Transforms rows of dequantised coefficients to rows of samples. The last four rows may be
        /// zero, or the last four columns.
        #[inline]
        #[target_feature(enable = $features)]
        fn inverse(rows: &[$vector; 8], sparse: (bool, bool)) -> [$vector; 8] {
            match sparse {
                (true, true) => turn(&pass::<true, true>(&turn(&pass::<true, false>(rows)))),
                (true, false) => turn(&pass::<false, true>(&turn(&pass::<true, false>(rows)))),
                (false, true) => turn(&pass::<true, true>(&turn(&pass::<false, false>(rows)))),
                (false, false) => turn(&pass::<false, true>(&turn(&pass::<false, false>(rows)))),
            }
        }
    };
}
pub(super) use transform_passes;
