//! `Matrix`: where points of an image lie in what is made of it.

/// Maps a point (x, y, 1). Pixel (0, 0) covers [0, 1) in both directions.
pub type Matrix = [[f64; 3]; 3];

/// Changes nothing.
pub const IDENTITY: Matrix = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]];

/// Returns the map that applies `second` after `first`.
pub fn product(second: Matrix, first: Matrix) -> Matrix {
    second.map(|row| std::array::from_fn(|column| (0..3).map(|at| row[at] * first[at][column]).sum()))
}

/// Returns a translation.
pub(super) fn moved(x: f64, y: f64) -> Matrix {
    [[1.0, 0.0, x], [0.0, 1.0, y], [0.0, 0.0, 1.0]]
}

/// Returns the inverse, with 1 at its end; `None` if there is none.
pub(super) fn inverse(m: Matrix) -> Option<Matrix> {
    let minor = |row: usize, column: usize| {
        let of = |i: usize, j: usize| m[(row + i) % 3][(column + j) % 3];
        of(1, 1) * of(2, 2) - of(1, 2) * of(2, 1)
    };
    let adjugate: Matrix = std::array::from_fn(|row| std::array::from_fn(|column| minor(column, row)));
    let scale = adjugate[2][2];
    let determinant: f64 = (0..3).map(|column| m[0][column] * adjugate[column][0]).sum();
    if !determinant.is_normal() || !scale.is_normal() {
        return None;
    }
    Some(adjugate.map(|row| row.map(|value| value / scale)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inverse_leads_back() {
        let m = [[1.1, 0.2, 3.0], [-0.3, 0.9, 7.0], [0.001, -0.002, 1.0]];
        let both = product(inverse(m).unwrap(), m);
        let scale = both[2][2];
        for (row, wanted) in both.iter().zip(IDENTITY) {
            assert!(row.iter().zip(wanted).all(|(&value, wanted)| (value / scale - wanted).abs() < 1e-12), "{both:?}");
        }
        assert_eq!(inverse([[1.0, 2.0, 0.0], [2.0, 4.0, 0.0], [0.0, 0.0, 1.0]]), None);
    }
}
