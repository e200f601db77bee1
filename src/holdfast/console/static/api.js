// Requests to the API. A failure is an Error with what happened and what to do.

export class ApiError extends Error {
  constructor(problem) {
    super(problem.message);
    this.remedy = problem.remedy;
    this.details = problem.details ?? [];
  }
}

export const path = (...parts) => `/api/v1/${parts.map(encodeURIComponent).join("/")}`;

export async function get(address) {
  return request(address, {});
}

export async function post(address, body = {}) {
  return request(address, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
}

async function request(address, options) {
  let answer;
  try {
    answer = await fetch(address, options);
  } catch {
    throw new ApiError({ message: "the console does not answer", remedy: "check that `holdfast serve console` runs" });
  }
  const value = await answer.json();
  if (!answer.ok) throw new ApiError(value.error);
  return value;
}
