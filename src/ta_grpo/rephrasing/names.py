"""First names that ``rules`` may exchange: each in one group only, and none that is a word, a place or a surname often.

Names that fit both groups (Alex, Sam, Jordan) and names that are words (Grace, Mark, Will) are left out on purpose.
"""

from __future__ import annotations

WOMEN = (
    "Abigail", "Adriana", "Agnes", "Alice", "Alicia", "Allison", "Amanda", "Amelia", "Amy", "Ana", "Andrea",
    "Angela", "Anita", "Anna", "Anne", "Anya", "Audrey", "Barbara", "Beatrice", "Bella", "Betty", "Bianca",
    "Brenda", "Brianna", "Bridget", "Camila", "Carla", "Carmen", "Caroline", "Catherine", "Cecilia", "Cindy",
    "Claire", "Clara", "Colleen", "Cynthia", "Danielle", "Daniela", "Deborah", "Debra", "Delia", "Denise", "Diana",
    "Donna", "Doris", "Dorothy", "Edith", "Elaine", "Eleanor", "Elena", "Elise", "Eliza", "Elizabeth", "Ella",
    "Ellen", "Emily", "Emma", "Erica", "Erin", "Esther", "Eva", "Evelyn", "Fatima", "Felicia", "Fiona", "Gabriela",
    "Gabrielle", "Geraldine", "Gina", "Gloria", "Gretchen", "Hannah", "Heidi", "Helen", "Helena", "Ingrid", "Irene",
    "Isabel", "Isabella", "Isabelle", "Jane", "Janet", "Janice", "Jasmine", "Jenna", "Jennifer", "Jenny", "Jessica",
    "Jill", "Joan", "Joanna", "Joanne", "Josephine", "Joyce", "Juana", "Judith", "Judy", "Julia", "Juliana",
    "Julie", "Juliet", "Karen", "Karla", "Kate", "Katherine", "Kathleen", "Kathy", "Katie", "Katrina", "Kayla",
    "Kristen", "Kristin", "Laura", "Lauren", "Laurie", "Leah", "Lena", "Linda", "Lisa", "Lois", "Lorraine",
    "Louise", "Lucia", "Lucy", "Lydia", "Lynn", "Mabel", "Madeline", "Maggie", "Marcia", "Margaret", "Maria",
    "Mariah", "Marie", "Marilyn", "Marissa", "Martha", "Mary", "Megan", "Melanie", "Melissa", "Mia", "Michelle",
    "Mila", "Miriam", "Molly", "Monica", "Nadia", "Nancy", "Naomi", "Natalia", "Natalie", "Natasha", "Nicole",
    "Nina", "Nora", "Norma", "Olga", "Olivia", "Pamela", "Patricia", "Paula", "Phoebe", "Priscilla", "Rachel",
    "Ramona", "Rebecca", "Regina", "Rhonda", "Rita", "Roberta", "Rosa", "Rosalind", "Roxanne", "Sabrina", "Sally",
    "Samantha", "Sandra", "Sara", "Sarah", "Selena", "Sharon", "Sheila", "Shelly", "Silvia", "Sonia", "Sophia",
    "Sophie", "Stacy", "Stella", "Stephanie", "Susan", "Suzanne", "Sylvia", "Tamara", "Tania", "Tanya", "Tara",
    "Teresa", "Theresa", "Tina", "Ursula", "Valerie", "Vanessa", "Vera", "Veronica", "Wanda", "Wendy", "Yolanda",
    "Yvonne", "Zoe",
)  # fmt: skip

MEN = (
    "Aaron", "Adam", "Ahmed", "Alan", "Albert", "Alejandro", "Alfred", "Andre", "Andrew", "Andy", "Anthony",
    "Antonio", "Arnold", "Arthur", "Barry", "Benjamin", "Bernard", "Boris", "Brandon", "Brendan", "Brian", "Bruce",
    "Bruno", "Bryan", "Calvin", "Carl", "Carlos", "Cecil", "Cesar", "Charles", "Charlie", "Christopher", "Clarence",
    "Connor", "Corey", "Curtis", "Damian", "Daniel", "Darren", "Dave", "David", "Dennis", "Derek", "Dexter",
    "Diego", "Dominic", "Donald", "Douglas", "Duncan", "Dwayne", "Dylan", "Eddie", "Edgar", "Edmund", "Eduardo",
    "Edward", "Edwin", "Eli", "Elias", "Elijah", "Elliott", "Emilio", "Eric", "Ernesto", "Ethan", "Eugene", "Felix",
    "Fernando", "Fred", "Frederick", "Gabriel", "Gary", "Geoffrey", "George", "Gerald", "Gilbert", "Gordon", "Greg",
    "Gregory", "Gustavo", "Harold", "Harry", "Hector", "Henry", "Herbert", "Howard", "Hubert", "Hugo", "Ian",
    "Isaac", "Ivan", "Jacob", "Jake", "James", "Jared", "Jason", "Javier", "Jeff", "Jeffrey", "Jeremiah", "Jeremy",
    "Jerome", "Jerry", "Jim", "Jimmy", "Joe", "Joel", "John", "Johnny", "Jonah", "Jonas", "Jonathan", "Jorge",
    "Jose", "Joseph", "Joshua", "Juan", "Julian", "Julio", "Julius", "Justin", "Keith", "Kenneth", "Kevin", "Kyle",
    "Lars", "Larry", "Leo", "Leon", "Leonard", "Leroy", "Liam", "Lionel", "Lloyd", "Louis", "Lucas", "Luis", "Luke",
    "Manuel", "Marcel", "Marco", "Marcos", "Marcus", "Mario", "Martin", "Marvin", "Matthew", "Maurice", "Michael",
    "Miguel", "Mike", "Milton", "Mohamed", "Nathan", "Nathaniel", "Neil", "Nicholas", "Nigel", "Noah", "Norman",
    "Oliver", "Omar", "Oscar", "Otto", "Pablo", "Patrick", "Paul", "Pedro", "Peter", "Phil", "Philip", "Rafael",
    "Ralph", "Ramon", "Raul", "Raymond", "Ricardo", "Richard", "Robert", "Roberto", "Roger", "Roland", "Ronald",
    "Ronnie", "Roy", "Rudolph", "Russell", "Ryan", "Samuel", "Scott", "Sean", "Sebastian", "Sergio", "Seth",
    "Simon", "Stanley", "Stephen", "Steve", "Steven", "Stuart", "Ted", "Theodore", "Thomas", "Tim", "Timothy",
    "Toby", "Todd", "Tom", "Tommy", "Tony", "Trevor", "Tyler", "Victor", "Vincent", "Walter", "Warren", "Wayne",
    "Wesley", "William", "Xavier", "Zachary",
)  # fmt: skip
