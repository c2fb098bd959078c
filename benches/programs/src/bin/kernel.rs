//! Frontier operations on data of others: `kernel REPEAT OUT DATA` filters points, `kernel REPEAT OUT
//! DATA DATA` adds two frontiers. Files hold numbers of 8 bytes, least significant first: how many
//! objectives, then the points. Prints the least seconds of one operation and the points that are
//! left, which go to OUT. `tools/peers.py` compares.

use std::error::Error;
use std::time::Instant;

use tensoropt::frontier::{
    CostVector, Packed2, Scratch, Term, Wide, WideAlgebra, Work, prune, union_of_sums,
};

/// The points of a file, one after the other.
fn read(path: &str) -> std::io::Result<(u64, Vec<u64>)> {
    let bytes = std::fs::read(path)?;
    let number = |chunk: &[u8]| u64::from_le_bytes(chunk.try_into().expect("eight bytes"));
    let mut numbers = bytes.chunks_exact(8).map(number);
    Ok((numbers.next().unwrap_or(0), numbers.collect()))
}

fn vectors<C: CostVector>(numbers: &[u64]) -> Vec<C> {
    numbers.chunks_exact(C::OBJECTIVES).map(C::from_slice).collect()
}

fn run<C: CostVector>(repeat: usize, algebra: &C::Algebra, sides: &[Vec<u64>]) -> (f64, Vec<u64>) {
    let mut scratch = Scratch::new();
    let (mut least, mut out) = (f64::INFINITY, Vec::new());
    let sides: Vec<Vec<C>> = sides.iter().map(|side| vectors(side)).collect();
    for _ in 0..repeat {
        if let [left, right] = &sides[..] {
            let begin = Instant::now();
            let terms = [Term { left, right }];
            let mut work = Work::default();
            union_of_sums(algebra, &terms, None, &mut out, &mut scratch, &mut work);
            least = least.min(begin.elapsed().as_secs_f64());
        } else {
            // In place, of a copy that is made before.
            out.clone_from(&sides[0]);
            let begin = Instant::now();
            prune(&mut out, &mut scratch);
            least = least.min(begin.elapsed().as_secs_f64());
        }
    }
    let costs = |point: &C| (0..C::OBJECTIVES).map(|i| point.get(i)).collect::<Vec<u64>>();
    (least, out.iter().flat_map(costs).collect())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [repeat, to, from @ ..] = &arguments[..] else {
        return Err("expected REPEAT OUT DATA [DATA]".into());
    };
    let mut objectives = 0;
    let mut sides = Vec::new();
    for path in from {
        let (count, numbers) = read(path)?;
        objectives = count;
        sides.push(numbers);
    }
    let small = sides.iter().flatten().all(|&cost| cost < 1 << 31);
    let repeat = repeat.parse()?;
    let (seconds, points) = match objectives {
        2 if small => run::<Packed2>(repeat, &(), &sides),
        2 => run::<Wide<2>>(repeat, &WideAlgebra::SUM, &sides),
        3 => run::<Wide<3>>(repeat, &WideAlgebra::SUM, &sides),
        4 => run::<Wide<4>>(repeat, &WideAlgebra::SUM, &sides),
        other => return Err(format!("{other} objectives, expected 2 to 4").into()),
    };
    let bytes: Vec<u8> = points.iter().flat_map(|cost| cost.to_le_bytes()).collect();
    std::fs::write(to, bytes)?;
    println!("{seconds} {}", points.len() / objectives as usize);
    Ok(())
}
