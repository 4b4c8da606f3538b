//! Random numbers of the gamma, Dirichlet and beta distributions.

use crate::order::random::Random;

/// Draws from the gamma distribution, by Marsaglia and Tsang (2000), <https://doi.org/10.1145/358407.358414>.
fn gamma(alpha: f64, random: &mut Random) -> f64 {
    let open = |random: &mut Random| 1.0 - random.uniform(0.0, 1.0); // never 0
    // A smaller shape is drawn from the next larger one.
    let boost = if alpha < 1.0 { open(random).powf(1.0 / alpha) } else { 1.0 };
    let d = if alpha < 1.0 { alpha + 1.0 } else { alpha } - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let radius = (-2.0 * open(random).ln()).sqrt();
        let normal = radius * (std::f64::consts::TAU * random.uniform(0.0, 1.0)).cos();
        let cube = (1.0 + c * normal).powi(3);
        if cube > 0.0 && open(random).ln() < 0.5 * normal * normal + d - d * cube + d * cube.ln() {
            return d * cube * boost;
        }
    }
}

/// Draws weights whose sum is 1, from the symmetric Dirichlet distribution. `alpha` is above 0.
pub(super) fn dirichlet(count: usize, alpha: f64, random: &mut Random) -> Vec<f64> {
    let mut drawn: Vec<f64> = (0..count).map(|_| gamma(alpha, random)).collect();
    let mut sum: f64 = drawn.iter().sum();
    // With a small alpha, all may be too small for a number. One of them then has nearly all the weight.
    if sum == 0.0
        && let Some(one) = drawn.get_mut(random.below(count as u32) as usize)
    {
        (*one, sum) = (1.0, 1.0);
    }
    drawn.into_iter().map(|value| value / sum).collect()
}

/// Draws from the beta distribution with both parameters `alpha`, above 0.
pub(super) fn beta(alpha: f64, random: &mut Random) -> f64 {
    dirichlet(2, alpha, random)[0]
}
